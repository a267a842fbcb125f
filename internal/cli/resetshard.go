package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/internal/changelog"
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// do does as planned.
func (r *reset) do(ctx context.Context, c asked, p *resetPlan) error {
	switch {
	case r.group != "":
		offsets := make(map[topic.Partition]kafka.Committed)
		for part, at := range p.parts {
			offsets[part] = kafka.Committed{Offset: at}
		}
		return c.CommitOffsets(ctx, r.group, offsets)
	case r.keepState:
		return r.move(ctx, c, p)
	}
	return r.renew(ctx, c, p)
}

// fenceTime bounds the wait for a shard's last transaction to end.
const fenceTime = time.Minute

// fence takes a shard over from whoever owns it.
func (r *reset) fence(ctx context.Context, c asked, s shardPosition) (*kafka.Session, error) {
	session, err := kafka.NewSession(c.config, kafka.SessionConfig{TransactionalID: consumer.TransactionalID(r.application, s.id)})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, fenceTime)
	defer cancel()
	if _, err := session.Fence(ctx); err != nil {
		session.Close()
		return nil, fmt.Errorf("fence shard %s: %w", s.id, err)
	}
	return session, nil
}

// move commits an offsets record for each shard, and leaves the state.
func (r *reset) move(ctx context.Context, c asked, p *resetPlan) error {
	for _, s := range p.shards {
		if !slices.ContainsFunc(p.Moves, func(m resetMove) bool { return m.Shard == string(s.id) }) {
			continue
		}
		err := r.owning(ctx, c, s, func(session *kafka.Session) error { return r.moveShard(ctx, c, session, p, s) })
		if err != nil {
			return err
		}
	}
	return nil
}

// ownTries is how often a shard is fenced again that its application takes
// back: one that runs does so at once, and then less and less often.
const ownTries = 10

// owning fences a shard, and does what only its owner can.
func (r *reset) owning(ctx context.Context, c asked, s shardPosition, do func(*kafka.Session) error) error {
	for try := 1; ; try++ {
		session, err := r.fence(ctx, c, s)
		if err != nil {
			return err
		}
		err = do(session)
		session.Close()
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, kafka.ErrFenced):
			return fmt.Errorf("shard %s: %w", s.id, err)
		case try == ownTries:
			return fmt.Errorf("shard %s: its application runs and takes it back each time: stop it first: %w", s.id, err)
		}
	}
}

func (r *reset) moveShard(ctx context.Context, c asked, session *kafka.Session, p *resetPlan, s shardPosition) error {
	// What the last owner committed is settled now, and nobody adds to it.
	last, err := c.LastRecords(ctx, changelog.OffsetsKey, s.changelog)
	if err != nil {
		return err
	}
	offsets, err := changelog.ParseOffsets(last[s.changelog].Value)
	if err != nil {
		return fmt.Errorf("read changelog %s: %w", s.changelog, err)
	}
	for i := range offsets.Inputs {
		in := &offsets.Inputs[i]
		if at, ok := p.parts[topic.Partition{Topic: in.Topic, Number: in.Partition}]; ok {
			in.Next, in.ID = at, p.infos[in.Topic].ID
		}
	}
	return commitOffsets(ctx, session, s, offsets)
}

// commitOffsets commits an offsets record to a shard's changelog.
func commitOffsets(ctx context.Context, session *kafka.Session, s shardPosition, offsets changelog.Offsets) error {
	ctx, cancel := context.WithTimeout(ctx, fenceTime)
	defer cancel()
	_, err := session.Commit(ctx, []kafka.Record{{Topic: s.changelog.Topic, Partition: s.changelog.Number, Key: changelog.OffsetsKey, Value: changelog.AppendOffsets(nil, offsets)}})
	if err != nil {
		return fmt.Errorf("commit offsets to %s: %w", s.changelog, err)
	}
	return nil
}

// renew makes the changelogs anew, each with the offsets to go on from.
//
// The group forgets first that there was state, or applications that start
// later would miss it. It can't while it has members; what it remembers then
// keeps their shards from beginning anew by themselves, until their offsets are
// there.
func (r *reset) renew(ctx context.Context, c asked, p *resetPlan) error {
	var logs []kafka.TopicDetail
	for _, s := range p.shards {
		if slices.ContainsFunc(logs, func(d kafka.TopicDetail) bool { return d.Name == s.changelog.Topic }) {
			continue
		}
		d, err := c.DescribeTopic(ctx, s.changelog.Topic)
		if err != nil {
			return err
		}
		logs = append(logs, d)
	}
	for _, s := range p.shards {
		session, err := r.fence(ctx, c, s)
		if err != nil {
			return err
		}
		session.Close()
	}
	if err := c.DeleteGroup(ctx, r.application); err != nil && !r.force {
		return fmt.Errorf("nothing is changed: %w", err)
	}
	for i, d := range logs {
		deleted, err := r.renewLog(ctx, c, d)
		switch {
		case err == nil:
		case deleted:
			return fmt.Errorf("changelog %s is deleted; do the reset again: %w", d.Name, err)
		case i > 0:
			return fmt.Errorf("%d of %d changelogs are made anew; do the reset again: %w", i, len(logs), err)
		default:
			return fmt.Errorf("no state is deleted: %w", err)
		}
	}
	for _, s := range p.shards {
		if len(s.offsets.Inputs) == 0 {
			continue // it has not begun
		}
		if err := r.owning(ctx, c, s, func(session *kafka.Session) error { return r.begin(ctx, c, session, p, s) }); err != nil {
			return fmt.Errorf("the state is deleted, and not every shard has its place yet; do the reset again: %w", err)
		}
	}
	return nil
}

// renewLog makes a changelog anew, with the settings that it had. It says
// whether the old one is gone, also with an error.
func (r *reset) renewLog(ctx context.Context, c asked, d kafka.TopicDetail) (deleted bool, err error) {
	if err := c.DeleteTopics(ctx, d.Name); err != nil {
		// An application that runs may have made it again by then.
		infos, lookErr := c.Topics(ctx, d.Name)
		if lookErr != nil || infos[d.Name].ID == d.ID {
			return false, errors.Join(err, lookErr)
		}
	}
	settings := map[string]string{"cleanup.policy": "compact"}
	for _, s := range d.Settings {
		if s.Own && !s.Sensitive {
			settings[s.Name] = s.Value
		}
	}
	created, err := c.CreateTopic(ctx, kafka.TopicSpec{Name: d.Name, Partitions: d.Partitions, Replication: int16(d.Replication), Settings: settings})
	if err == nil && !created {
		err = c.AlterTopic(ctx, d.Name, kafka.TopicChange{Set: settings}, false)
	}
	return true, err
}

// begin writes where a shard begins into its new changelog.
func (r *reset) begin(ctx context.Context, c asked, session *kafka.Session, p *resetPlan, s shardPosition) error {
	// With the fence this is settled: either the application has begun here, or
	// it can't until this is committed.
	there, err := c.LastRecords(ctx, changelog.OffsetsKey, s.changelog)
	if err != nil {
		return err
	}
	if len(there) > 0 {
		return errors.New("its application runs and has begun anew by itself: stop it")
	}
	offsets := changelog.Offsets{Inputs: slices.Clone(s.offsets.Inputs)}
	for i := range offsets.Inputs {
		in := &offsets.Inputs[i]
		info := p.infos[in.Topic]
		in.Next, in.ID = p.parts[topic.Partition{Topic: in.Topic, Number: in.Partition}], info.ID
		offsets.Partitions = info.Partitions
	}
	return commitOffsets(ctx, session, s, offsets)
}
