package messaging

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// Settings of the topics that Pawl makes for messaging.
const (
	retryRetentionMin = 7 * 24 * time.Hour
	letterRetention   = 30 * 24 * time.Hour
	headerRoom        = 64 << 10 // by how much the topics take larger messages than the input
	tierRetention     = 4        // so many times a tier's delay a message must be kept in it
)

// prepare looks at the input and makes the topics that go with it. A cluster
// that is not there yet is waited for.
func (w *Worker) prepare(ctx context.Context) error {
	return kafka.Await(ctx, w.cfg.StartTimeout, w.log, func() error {
		// It knows best what is wrong with a connection.
		if err := w.admin.Check(ctx, true); err != nil {
			return err
		}
		if w.lettersAdmin != w.admin {
			if err := w.lettersAdmin.Check(ctx, true); err != nil {
				return fmt.Errorf("cluster of the dead letters: %w", err)
			}
		}
		return w.tryPrepare(ctx)
	})
}

func (w *Worker) tryPrepare(ctx context.Context) error {
	infos, err := w.admin.Topics(ctx, w.cfg.Topic)
	if err != nil {
		return err
	}
	input, ok := infos[w.cfg.Topic]
	if !ok {
		return fmt.Errorf("topic %s: %w", w.cfg.Topic, ErrUnknownTopic)
	}
	var errs []error
	for _, spec := range w.topicSpecs(ctx, input) {
		if err := ensure(ctx, w.admin, spec); err != nil {
			errs = append(errs, err)
		}
	}
	letters := kafka.TopicSpec{Name: w.cfg.DeadLetters.Topic, Partitions: input.Partitions, Replication: replication(w.cfg.DeadLetters.Cluster == nil, input),
		Settings: w.settings(ctx, letterRetention)}
	if err := ensure(ctx, w.lettersAdmin, letters); err != nil {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := w.checkTiers(ctx); err != nil {
		return err
	}
	if err := w.checkLetters(ctx); err != nil {
		return err
	}
	made, err := w.lettersAdmin.Topics(ctx, letters.Name)
	if err != nil {
		return err
	}
	w.letterPartitions.Store(int64(max(1, made[letters.Name].Partitions)))
	return w.resolveStart(ctx, input)
}

// topicSpecs returns the topics by which messages come back.
func (w *Worker) topicSpecs(ctx context.Context, input kafka.TopicInfo) []kafka.TopicSpec {
	spec := func(name string, retention time.Duration) kafka.TopicSpec {
		return kafka.TopicSpec{Name: name, Partitions: input.Partitions, Replication: replication(true, input), Settings: w.settings(ctx, retention)}
	}
	specs := []kafka.TopicSpec{spec(RedriveTopic(w.cfg.Application, w.cfg.Consumer), retryRetentionMin)}
	for i, d := range w.cfg.Retry.Tiers {
		specs = append(specs, spec(RetryTopic(w.cfg.Application, w.cfg.Consumer, i+1), max(retryRetentionMin, 2*tierRetention*d)))
	}
	return specs
}

func replication(same bool, input kafka.TopicInfo) int16 {
	if !same {
		return 0
	}
	return int16(input.Replication)
}

// settings returns the settings of a topic that is to hold the messages of the
// input with Pawl's headers, for a while from when they are written there.
func (w *Worker) settings(ctx context.Context, retention time.Duration) map[string]string {
	s := map[string]string{
		"cleanup.policy":  "delete",
		"retention.ms":    strconv.FormatInt(retention.Milliseconds(), 10),
		"retention.bytes": "-1",
	}
	limit := 1000012 // Kafka's default
	if in, err := w.admin.TopicSettings(ctx, w.cfg.Topic); err == nil {
		if n, err := strconv.Atoi(in["max.message.bytes"]); err == nil {
			limit = n
		}
	} else {
		w.log.Debug("look up how large messages may be", "error", err)
	}
	s["max.message.bytes"] = strconv.Itoa(limit + headerRoom)
	return s
}

// ensure creates a topic, or gives one that exists as many partitions as it
// needs.
func ensure(ctx context.Context, admin *kafka.Admin, spec kafka.TopicSpec) error {
	infos, err := admin.Topics(ctx, spec.Name)
	if err != nil {
		return err
	}
	info, ok := infos[spec.Name]
	switch {
	case !ok:
		if _, err := admin.CreateTopic(ctx, spec); err != nil {
			return err
		}
		return nil
	case info.Partitions < spec.Partitions:
		err := admin.CreatePartitions(ctx, spec.Name, spec.Partitions)
		if err != nil {
			// Another process may have been faster.
			if infos, again := admin.Topics(ctx, spec.Name); again == nil && infos[spec.Name].Partitions >= spec.Partitions {
				return nil
			}
		}
		return err
	}
	return nil
}

// checkTiers refuses delay topics that would lose messages before they are due,
// and notes how long a message may wait in each.
func (w *Worker) checkTiers(ctx context.Context) error {
	var errs []error
	w.holds = make([]time.Duration, len(w.cfg.Retry.Tiers))
	for i, delay := range w.cfg.Retry.Tiers {
		name := RetryTopic(w.cfg.Application, w.cfg.Consumer, i+1)
		s, err := w.admin.TopicSettings(ctx, name)
		if err != nil {
			return err
		}
		if err := checkTier(name, delay, s); err != nil {
			errs = append(errs, err)
		}
		w.holds[i] = keptBy(s) / tierRetention
	}
	name := RedriveTopic(w.cfg.Application, w.cfg.Consumer)
	s, err := w.admin.TopicSettings(ctx, name)
	if err != nil {
		return err
	}
	if err := checkTier(name, 0, s); err != nil {
		errs = append(errs, err)
	}
	w.holdRedriven = max(keptBy(s)/tierRetention, time.Minute)
	return errors.Join(errs...)
}

// checkLetters refuses a dead-letter topic that would lose letters of one key. One
// that keeps them for a short time, or up to a size, may be meant to: that is
// said.
func (w *Worker) checkLetters(ctx context.Context) error {
	name := w.cfg.DeadLetters.Topic
	s, err := w.lettersAdmin.TopicSettings(ctx, name)
	switch {
	case errors.Is(err, ErrUnauthorized): // to write to it may be all that is allowed
		w.log.Warn("whether the dead-letter topic keeps letters, or is compacted, can't be looked up", "topic", name, "error", err)
		return nil
	case err != nil:
		return err
	}
	if err := checkCompaction(name, s); err != nil {
		return err
	}
	for _, l := range kafka.LetterLapses(s) {
		w.log.Warn(l.What, "topic", name, l.Setting, l.Value, "mend", fmt.Sprintf("pawl topic alter %s --set %s=%s", name, l.Setting, l.Want))
	}
	return nil
}

func checkCompaction(name string, s map[string]string) error {
	if strings.Contains(s["cleanup.policy"], "compact") {
		return fmt.Errorf("topic %s is compacted (cleanup.policy=%s): of the messages of one key in it, it would keep one", name, s["cleanup.policy"])
	}
	return nil
}

func checkTier(name string, delay time.Duration, s map[string]string) error {
	if err := checkCompaction(name, s); err != nil {
		return err
	}
	if n, err := strconv.ParseInt(s["retention.bytes"], 10, 64); err == nil && n >= 0 {
		return fmt.Errorf("topic %s drops messages above %d bytes (retention.bytes), whether they were handled or not: want -1", name, n)
	}
	if kept := keptBy(s); kept < tierRetention*delay {
		return fmt.Errorf("topic %s keeps messages for %v (retention.ms), and a delay of %v needs %v", name, kept, delay, tierRetention*delay)
	}
	return nil
}

// keptBy is how long a topic keeps messages, by its settings: as long as any is to
// wait in it, if it keeps them for ever, or does not say.
func keptBy(s map[string]string) time.Duration {
	const most = tierMax * tierRetention
	if ms, err := strconv.ParseInt(s["retention.ms"], 10, 64); err == nil && ms >= 0 && ms < most.Milliseconds() {
		return time.Duration(ms) * time.Millisecond
	}
	return most
}

// locate returns the streams of a partition, each at the position that was
// committed for it.
func (w *Worker) locate(ctx context.Context, p *partition) ([]*stream, error) {
	names := []string{w.cfg.Topic, RedriveTopic(w.cfg.Application, w.cfg.Consumer)}
	for n := range tiersMax { // also those that are no longer configured
		names = append(names, RetryTopic(w.cfg.Application, w.cfg.Consumer, n+1))
	}
	infos, err := w.admin.Topics(ctx, names...)
	if err != nil {
		return nil, err
	}
	var streams []*stream
	var parts []topic.Partition
	for i, name := range names {
		info, ok := infos[name]
		if !ok {
			if i < streamTiers+len(w.cfg.Retry.Tiers) {
				return nil, fmt.Errorf("topic %s: %w", name, ErrUnknownTopic)
			}
			break
		}
		if info.Partitions <= int(p.id.Number) {
			// The input was given more partitions.
			if err := ensure(ctx, w.admin, kafka.TopicSpec{Name: name, Partitions: infos[w.cfg.Topic].Partitions}); err != nil {
				return nil, err
			}
		}
		s := newStream(p, i, name, info.ID)
		streams = append(streams, s)
		parts = append(parts, s.id)
	}
	committed, err := w.admin.Committed(ctx, w.group)
	if err != nil {
		return nil, err
	}
	earliest, err := w.admin.Offsets(ctx, kafka.Earliest, parts...)
	if err != nil {
		return nil, err
	}
	ends, err := w.admin.Offsets(ctx, kafka.End, parts...)
	if err != nil {
		return nil, err
	}
	for _, s := range streams {
		if err := w.locateStream(s, committed, earliest[s.id], ends[s.id]); err != nil {
			return nil, err
		}
	}
	return streams, nil
}

func (w *Worker) locateStream(s *stream, all map[topic.Partition]kafka.Committed, earliest, end int64) error {
	p := s.p
	s.highWater = end
	none := snapshot{suspect: -1}
	c, ok := all[s.id]
	snap, err := decodeSnapshot(c.Metadata, place{id: s.tid, partition: s.id.Number, offset: c.Offset})
	if errors.Is(err, errAnother) || !ok && p.outlived[s.id.Topic] {
		// With a topic that is deleted brokers drop what was committed of it,
		// unless somebody commits later.
		return w.locateAnew(s, c, earliest, end)
	}
	if !ok {
		s.begin(earliest, none)
		if s.tier == streamInput {
			p.setRounds(1)
		}
		return nil
	}
	if err != nil {
		p.log.Warn("the metadata of the last commit is of no use: messages that it may have settled come again", "topic", s.id.Topic, "offset", c.Offset, "error", err)
		w.metrics.snapshotsIgnored.Add(1)
		snap = none
	}
	s.committed, s.hasCommitted = c, true
	offset := c.Offset
	if offset < earliest || offset > end {
		missing := &kafka.OffsetRangeError{Partition: s.id, Offset: offset, Earliest: earliest, End: end}
		if w.cfg.OnOffsetOutOfRange == Fail && s.tier == streamInput {
			return &missingError{missing}
		}
		to := earliest
		if w.cfg.OnOffsetOutOfRange == GoToLatest && s.tier == streamInput {
			to = end
		}
		p.log.Warn("what was committed is no longer there", "error", missing, "goes on at", to)
		if offset < earliest {
			w.metrics.missed.Add(to - offset)
		} else {
			s.hasCommitted = false // it goes backwards
			snap = none
		}
		offset = to
	}
	if snap.suspect >= 0 {
		s.suspect, s.crashes = snap.suspect, snap.crashes+1
		p.log.Warn("the process ended while a message was handled alone", "topic", s.id.Topic, "offset", s.suspect, "times", s.crashes)
	}
	if s.tier == streamInput {
		p.setRounds(snap.rounds + 1)
	}
	s.begin(offset, snap)
	return nil
}

func (p *partition) setRounds(n uint64) {
	p.mu.Lock()
	p.mu.rounds = n
	p.mu.Unlock()
}

// resolveStart commits where every partition begins, once, before anybody has
// joined: a partition that has no offset later has appeared since.
func (w *Worker) resolveStart(ctx context.Context, input kafka.TopicInfo) error {
	if w.cfg.Start == Earliest {
		return nil
	}
	for {
		all, err := w.admin.Committed(ctx, w.group)
		if err != nil {
			return err
		}
		for p := range all {
			if p.Topic == w.cfg.Topic {
				return nil
			}
		}
		at := kafka.End
		if w.cfg.Start.place == "time" {
			at = kafka.Time(w.cfg.Start.at)
		}
		parts := make([]topic.Partition, input.Partitions)
		for i := range parts {
			parts[i] = topic.Partition{Topic: w.cfg.Topic, Number: int32(i)}
		}
		from, err := w.admin.Offsets(ctx, at, parts...)
		if err != nil {
			return err
		}
		offsets := make(map[topic.Partition]kafka.Committed, len(from))
		for p, o := range from {
			text, _ := (&snapshot{suspect: -1, read: o}).encode(place{id: input.ID, partition: p.Number, offset: o})
			offsets[p] = kafka.Committed{Offset: o, Metadata: text}
		}
		if err = w.admin.CommitOffsets(ctx, w.group, offsets); err == nil {
			return nil
		}
		// Another process has joined meanwhile, having done the same before.
		w.log.Debug("commit the start", "error", err)
		select {
		case <-time.After(startBackoff):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// ends returns where streams end now.
func (w *Worker) ends(ctx context.Context, streams []*stream) (map[topic.Partition]int64, error) {
	parts := make([]topic.Partition, len(streams))
	for i, s := range streams {
		parts[i] = s.id
	}
	return w.admin.Offsets(ctx, kafka.StableEnd, parts...)
}
