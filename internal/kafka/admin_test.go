package kafka

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/pawlstream/pawl/topic"
	"github.com/twmb/franz-go/pkg/kerr"
)

func TestTopics(t *testing.T) {
	brokers(t, func(e *env) {
		a := e.admin()
		name := e.name("log")
		spec := TopicSpec{Name: name, Partitions: 3, Settings: map[string]string{"cleanup.policy": "compact"}}
		created, err := a.CreateTopic(e.ctx, spec)
		if err != nil || !created {
			e.Fatalf("create: %v, %v", created, err)
		}
		spec.Partitions = 5 // no matter: it is left as it is
		if created, err := a.CreateTopic(e.ctx, spec); err != nil || created {
			e.Errorf("create it again: %v, %v, want that nothing was created", created, err)
		}
		infos, err := a.Topics(e.ctx, name, e.name("missing"))
		if err != nil {
			e.Fatal(err)
		}
		info := infos[name]
		if len(infos) != 1 || info.Partitions != 3 || info.Replication != 1 || info.ID == (topic.ID{}) {
			e.Errorf("topics: %+v, want the one with 3 partitions and an ID", infos)
		}
		if all, err := a.Topics(e.ctx); err != nil || all[name] != info {
			e.Errorf("of all topics %s is %+v, %v, want %+v", name, all[name], err, info)
		}
		settings, err := a.TopicSettings(e.ctx, name)
		if err != nil || settings["cleanup.policy"] != "compact" || settings["max.message.bytes"] == "" {
			e.Errorf("settings: %v, %v, want what was given and the defaults", settings, err)
		}
		if _, err := a.TopicSettings(e.ctx, e.name("missing")); !errors.Is(err, ErrUnknownTopic) {
			e.Errorf("settings of a topic that does not exist: %v, want ErrUnknownTopic", err)
		}
		if err := a.CreatePartitions(e.ctx, name, 4); err != nil {
			e.Error(err)
		}
		if infos, err := a.Topics(e.ctx, name); err != nil || infos[name].Partitions != 4 || infos[name].ID != info.ID {
			e.Errorf("with a partition more: %+v, %v", infos[name], err)
		}
		if err := a.DeleteTopics(e.ctx, name, e.name("missing")); err != nil {
			e.Error(err)
		}
		if _, err := a.CreateTopic(e.ctx, spec); err != nil {
			e.Error(err)
		}
		if infos, err := a.Topics(e.ctx, name); err != nil || infos[name].ID == info.ID || infos[name].Partitions != 5 {
			e.Errorf("deleted and created again: %+v, %v, want another ID than %s", infos[name], err, info.ID)
		}
		if _, err := a.CreateTopic(e.ctx, TopicSpec{Name: e.name("bad"), Replication: 5}); err == nil {
			e.Error("a topic was created with more replicas than there are brokers")
		}
	})
}

// Of any number of processes that create a topic at once one does, and all see
// it.
func TestCreateTopicAtOnce(t *testing.T) {
	brokers(t, func(e *env) {
		var wg sync.WaitGroup
		var mu sync.Mutex
		n := 0
		for range 8 {
			a := e.admin()
			wg.Go(func() {
				created, err := a.CreateTopic(e.ctx, TopicSpec{Name: e.name("one"), Partitions: 2})
				if err != nil {
					e.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				if created {
					n++
				}
				if infos, err := a.Topics(e.ctx, e.name("one")); err != nil || infos[e.name("one")].Partitions != 2 {
					e.Errorf("after creation: %+v, %v", infos, err)
				}
			})
		}
		wg.Wait()
		if n != 1 {
			e.Errorf("%d created the topic, want 1", n)
		}
	})
}

func TestTransactions(t *testing.T) {
	brokers(t, func(e *env) {
		d := e.topic("out", 1, nil)
		s := e.session("a")
		e.commit(s, d, "x")
		ts, err := e.admin().Transactions(e.ctx)
		if err != nil {
			e.Fatal(err)
		}
		for _, tx := range ts {
			if tx.ID == e.name("a") {
				if tx.ProducerID != s.identity.ID || tx.State == "" {
					e.Errorf("listed %+v, want producer %d", tx, s.identity.ID)
				}
				return
			}
		}
		e.Errorf("%s is not listed: %+v", e.name("a"), ts)
	})
}

// What a broker says of a case takes the place of what its code says in general,
// which may be untrue of it.
func TestRefusal(t *testing.T) {
	err := fmt.Errorf("alter topic a: %w", classed(said(kerr.InvalidPartitions, "topic a has 3 partitions, and can't have 2")))
	if want := "alter topic a: INVALID_PARTITIONS: topic a has 3 partitions, and can't have 2"; err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
	if !errors.Is(err, kerr.InvalidPartitions) {
		t.Errorf("%v is not INVALID_PARTITIONS to errors.Is", err)
	}
	if got := said(kerr.InvalidPartitions, ""); got != error(kerr.InvalidPartitions) {
		t.Errorf("with nothing said the error is %v, want what it was", got)
	}
}
