package consumer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// changelogInfo is what is known of a changelog topic.
type changelogInfo struct {
	kafka.TopicInfo
	TombstoneRetention time.Duration
}

// consumed is the use of a topic that is input.
const consumed = "consumed"

// prepareTopics checks that every topic exists that is consumed or listed as
// an output, and creates those that it may.
func (a *App) prepareTopics(ctx context.Context) error {
	var errs []error
	for _, set := range a.sets {
		if _, err := a.inputsOf(ctx, set); err != nil {
			errs = append(errs, err)
			continue
		}
		if _, err := a.changelogOf(ctx, set); err != nil {
			errs = append(errs, err)
		}
		if o, ok := set.consumer.(Outputs); ok {
			for _, d := range o.Outputs() {
				if _, err := a.ensure(ctx, d, "output"); err != nil {
					errs = append(errs, err)
				}
			}
		}
	}
	if len(errs) == 0 {
		a.prepared.Store(true)
	}
	return errors.Join(errs...)
}

// ensure returns a topic's information, and creates it first where that is
// wanted. Input is created at start alone: a topic that goes away later takes
// messages with it, and an empty one in its place would hide that.
func (a *App) ensure(ctx context.Context, d *topic.Description, use string) (kafka.TopicInfo, error) {
	infos, err := a.admin.Topics(ctx, d.Name())
	if err != nil {
		return kafka.TopicInfo{}, fmt.Errorf("look up %s topic %s: %w", use, d.Name(), err)
	}
	if info, ok := infos[d.Name()]; ok {
		return info, nil
	}
	if use == consumed && a.prepared.Load() {
		return kafka.TopicInfo{}, fmt.Errorf("%s topic %s does not exist any more: %w", use, d.Name(), kafka.ErrUnknownTopic)
	}
	partitions := d.Partitions()
	if partitions == 0 {
		partitions = a.cfg.CreateTopics
	}
	if partitions == 0 {
		return kafka.TopicInfo{}, fmt.Errorf("%s topic %s does not exist: create it, or give its description a number of partitions so that it is created at start: %w", use, d.Name(), kafka.ErrUnknownTopic)
	}
	created, err := a.admin.CreateTopic(ctx, kafka.TopicSpec{Name: d.Name(), Partitions: partitions, Replication: a.cfg.Replication, Settings: d.Settings()})
	if err != nil {
		return kafka.TopicInfo{}, fmt.Errorf("create %s topic %s: %w", use, d.Name(), err)
	}
	if created {
		a.log.Info("topic created", "topic", d.Name(), "partitions", partitions)
	}
	infos, err = a.admin.Topics(ctx, d.Name())
	if err != nil {
		return kafka.TopicInfo{}, fmt.Errorf("look up %s topic %s: %w", use, d.Name(), err)
	}
	info, ok := infos[d.Name()]
	if !ok {
		return info, fmt.Errorf("%s topic %s is not there after it was created: %w", use, d.Name(), kafka.ErrUnknownTopic)
	}
	return info, nil
}

// inputsOf returns the consumed topics of a set, which all have the same
// number of partitions.
func (a *App) inputsOf(ctx context.Context, set *set) (map[string]kafka.TopicInfo, error) {
	infos := make(map[string]kafka.TopicInfo)
	for _, d := range set.topics {
		info, err := a.ensure(ctx, d, consumed)
		if err != nil {
			return nil, err
		}
		infos[d.Name()] = info
	}
	first := infos[set.topics[0].Name()]
	for _, info := range infos {
		if info.Partitions != first.Partitions {
			return nil, fmt.Errorf("topics of the co-partitioned set %s differ: %s has %d partitions and %s has %d", set.name, first.Name, first.Partitions, info.Name, info.Partitions)
		}
	}
	return infos, nil
}

// changelogOf returns a set's changelog topic, created or extended to the
// number of partitions of the input, and checked: its settings decide whether
// state is kept. Two processes that create it at once agree.
func (a *App) changelogOf(ctx context.Context, set *set) (changelogInfo, error) {
	name := ChangelogTopic(a.cfg.Application, set.name)
	inputs, err := a.inputsOf(ctx, set)
	if err != nil {
		return changelogInfo{}, err
	}
	partitions := inputs[set.topics[0].Name()].Partitions
	info, err := a.ensure(ctx, topic.Bytes(name).With(topic.Partitions(partitions), topic.Compacted()).Description, "changelog")
	if err != nil {
		return changelogInfo{}, err
	}
	if info.Partitions < partitions {
		if err := a.admin.CreatePartitions(ctx, name, partitions); err != nil {
			return changelogInfo{}, fmt.Errorf("extend changelog %s to %d partitions: %w", name, partitions, err)
		}
		a.log.Info("changelog extended", "topic", name, "partitions", partitions)
		info.Partitions = partitions
	}
	if a.cfg.OnFailure == DeadLetter {
		if err := a.ensureDeadLetters(ctx, set, partitions); err != nil {
			return changelogInfo{}, err
		}
	}
	a.mu.Lock()
	known, ok := a.mu.logs[name]
	a.mu.Unlock()
	if ok && known.ID == info.ID && known.Partitions == info.Partitions {
		return known, nil
	}
	settings, err := a.admin.TopicSettings(ctx, name)
	if err != nil {
		return changelogInfo{}, fmt.Errorf("look up the settings of changelog %s: %w", name, err)
	}
	full := changelogInfo{TopicInfo: info, TombstoneRetention: 24 * time.Hour}
	if why := losesState(name, settings); why != "" {
		return changelogInfo{}, errors.New(why)
	}
	if ms, err := strconv.ParseInt(settings["delete.retention.ms"], 10, 64); err == nil {
		full.TombstoneRetention = time.Duration(min(ms, int64(100*365*24*time.Hour/time.Millisecond))) * time.Millisecond
	}
	if !a.cfg.Cluster.OneBroker && (info.Replication == 1 || settings["min.insync.replicas"] == "1") {
		a.log.Warn("the changelog is on one broker alone: what that loses, is lost", "topic", name, "replication", info.Replication, "min.insync.replicas", settings["min.insync.replicas"])
	}
	a.mu.Lock()
	a.mu.logs[name] = full
	a.mu.Unlock()
	return full, nil
}

// losesState says why a changelog of these settings loses state, or nothing if it
// does not.
func losesState(name string, settings map[string]string) string {
	if policy := settings["cleanup.policy"]; policy != "compact" {
		return fmt.Sprintf("changelog %s has cleanup.policy=%s, which loses state: set it to compact", name, policy)
	}
	return ""
}

// ensureDeadLetters creates a set's dead-letter topic, and extends it to the
// number of partitions of the input: a dead letter keeps its partition. It is
// made to take the largest message of the input with what a letter adds.
func (a *App) ensureDeadLetters(ctx context.Context, set *set, partitions int) error {
	name := DeadLetterTopic(a.cfg.Application, set.name)
	options := []topic.Setting{topic.Partitions(partitions)}
	infos, err := a.admin.Topics(ctx, name)
	if err != nil {
		return fmt.Errorf("look up dead-letter topic %s: %w", name, err)
	}
	if _, ok := infos[name]; !ok {
		largest, err := a.largestMessage(ctx, set)
		if err != nil {
			return err
		}
		options = append(options, topic.Configured(maxMessageBytes, strconv.FormatInt(largest+letterRoom, 10)))
	}
	info, err := a.ensure(ctx, topic.Bytes(name).With(options...).Description, "dead-letter")
	if err != nil {
		return err
	}
	if info.Partitions >= partitions {
		return nil
	}
	if err := a.admin.CreatePartitions(ctx, name, partitions); err != nil {
		return fmt.Errorf("extend dead-letter topic %s to %d partitions: %w", name, partitions, err)
	}
	return nil
}

// maxMessageBytes is Kafka's name for how large a batch a topic takes.
const maxMessageBytes = "max.message.bytes"

// largestMessage returns how large a message the topics of a set take.
func (a *App) largestMessage(ctx context.Context, set *set) (int64, error) {
	largest := int64(1 << 20)
	for _, name := range topicNames(set.topics) {
		settings, err := a.admin.TopicSettings(ctx, name)
		if err != nil {
			return 0, fmt.Errorf("look up the settings of topic %s: %w", name, err)
		}
		if n, err := strconv.ParseInt(settings[maxMessageBytes], 10, 64); err == nil {
			largest = max(largest, min(n, math.MaxInt32-letterRoom))
		}
	}
	return largest, nil
}

// changelogInterval is how often the settings of the changelogs are looked at
// while the application runs. A broker deletes by age or size no sooner than its
// next look at a segment that is closed, which takes minutes.
const changelogInterval = 2 * time.Minute

// watchTopics looks, now and then, whether all consumed topics are there, and
// whether the changelogs are what the shards took them for. A topic that is
// deleted while it is consumed has no shards any more, and somebody has to say
// so; a changelog that is made anew leaves a shard without messages with a state
// that is nobody's; one that is set to delete loses state.
func (a *App) watchTopics(ctx context.Context) {
	t := time.NewTicker(a.cfg.TopicsInterval)
	defer t.Stop()
	looked := time.Now()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		var inputs, logs []string
		for _, set := range a.sets {
			inputs = append(inputs, topicNames(set.topics)...)
			logs = append(logs, ChangelogTopic(a.cfg.Application, set.name))
		}
		infos, err := a.admin.Topics(ctx, slices.Concat(inputs, logs)...)
		if err != nil {
			a.log.Debug("look for consumed topics", "error", err)
			continue // whoever needs the broker says what is wrong with it
		}
		missing := slices.DeleteFunc(inputs, func(name string) bool { _, ok := infos[name]; return ok })
		a.mu.Lock()
		changed := !slices.Equal(missing, a.mu.missing)
		a.mu.missing = missing
		a.mu.Unlock()
		if changed && len(missing) > 0 {
			a.log.Error("consumed topics do not exist any more: their shards have stopped", "topics", missing)
		}
		for _, s := range a.all() {
			if info, ok := infos[ChangelogTopic(a.cfg.Application, s.set.name)]; ok {
				s.compareChangelog(info.ID)
			}
		}
		a.mu.Lock()
		unsafe := len(a.mu.unsafe) > 0
		a.mu.Unlock()
		if unsafe || time.Since(looked) >= changelogInterval { // what is mended is seen soon
			looked = time.Now()
			logs = slices.DeleteFunc(logs, func(name string) bool { _, ok := infos[name]; return !ok })
			a.checkChangelogs(ctx, logs)
		}
	}
}

// checkChangelogs looks at the settings of changelogs, and tells of those that
// lose state. The shards run on: what they have is whole, and stopping them would
// not keep it.
func (a *App) checkChangelogs(ctx context.Context, names []string) {
	all, err := a.admin.SettingsOfTopics(ctx, names...)
	if err != nil {
		a.log.Debug("look at the settings of the changelogs", "error", err)
		return
	}
	var unsafe []string
	for _, name := range names {
		if settings, ok := all[name]; ok {
			if why := losesState(name, settings); why != "" {
				unsafe = append(unsafe, why)
			}
		}
	}
	a.mu.Lock()
	changed := !slices.Equal(unsafe, a.mu.unsafe)
	a.mu.unsafe = unsafe
	a.mu.Unlock()
	switch {
	case changed && len(unsafe) > 0:
		a.log.Error("changelogs are set to lose state", "reason", strings.Join(unsafe, "; "))
	case changed:
		a.log.Info("the changelogs keep state again")
	}
}

// compareChangelog has a shard begin anew whose changelog is another topic by now
// than the one that its state is of. One with messages notices by itself.
func (s *shard) compareChangelog(id topic.ID) {
	s.mu.Lock()
	renewed := s.mu.current != nil && s.mu.status.Phase == Running && s.mu.current.changelogID != id
	s.mu.Unlock()
	if renewed {
		s.suspect(errRenewed)
	}
}

// advised returns what the group was last advised of for the topics of a set.
func (a *App) advised(ctx context.Context, set *set) (map[topic.Partition]advice, error) {
	committed, err := a.admin.Committed(ctx, a.cfg.Application)
	if err != nil {
		return nil, fmt.Errorf("look up the offsets of group %s: %w", a.cfg.Application, err)
	}
	advised := make(map[topic.Partition]advice)
	for p, c := range committed {
		if !slices.Contains(topicNames(set.topics), p.Topic) {
			continue
		}
		if adv, ok := parseAdvice(c.Metadata); ok {
			advised[p] = adv
		}
	}
	return advised, nil
}

// checkStateLost is asked when a shard's changelog holds no offsets record. If
// the group was advised of offsets for the shard, there was one.
func (a *App) checkStateLost(ctx context.Context, s *shard) error {
	advised, err := a.advised(ctx, s.set)
	if err != nil {
		return err
	}
	for p, adv := range advised {
		if p.Number == s.partition {
			return s.stateLost(fmt.Errorf("the group has consumed %s with state in changelog %s (topic ID %s), which now holds none: %w", p, ChangelogTopic(a.cfg.Application, s.set.name), adv.Changelog, ErrStateLost))
		}
	}
	return nil
}

// stateLost is what becomes of a shard whose state is lost: it fails, or, where
// that was accepted beforehand, begins with what there is, which is told and
// counted, so that a loss that nobody has expected is not one in silence.
func (s *shard) stateLost(why error) error {
	if !s.app.cfg.AcceptStateLoss {
		return fmt.Errorf("%w; Config.AcceptStateLoss (--accept-state-loss) begins without it", why)
	}
	s.log.Warn("state is lost, and that was accepted: the shard begins without it", "reason", why)
	s.app.metrics.discarded.WithLabelValues("accepted").Inc()
	return nil
}

// resolveStart returns the offset at which a partition is first consumed.
// later says that the shard has consumed other topics before this one.
func (a *App) resolveStart(ctx context.Context, s *shard, p topic.Partition, later bool) (int64, error) {
	start := a.cfg.Start
	if !later && start != Earliest {
		advised, err := a.advised(ctx, s.set)
		if err != nil {
			return 0, err
		}
		for _, adv := range slices.Collect(maps.Values(advised)) {
			later = later || int(p.Number) >= adv.Partitions
		}
	}
	at := kafka.Earliest
	switch {
	case later: // what came before it was found is not to be lost
	case start == Latest:
		at = kafka.StableEnd
	case start != Earliest:
		at = kafka.Time(start.at)
	}
	offsets, err := a.admin.Offsets(ctx, at, p)
	if err != nil {
		return 0, fmt.Errorf("look up where %s starts: %w", p, err)
	}
	next, ok := offsets[p]
	if !ok || next < 0 {
		return 0, fmt.Errorf("look up where %s starts: no answer: %w", p, kafka.ErrUnknownTopic)
	}
	a.log.Info("the first offset is resolved", "partition", p.String(), "start", strings.TrimSpace(start.String()), "offset", next)
	return next, nil
}
