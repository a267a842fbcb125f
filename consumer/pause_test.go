package consumer_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/consumertest"
	"github.com/pawlstream/pawl/topic"
)

// A shard that is paused finishes what is open, and consumes nothing until it is
// resumed; it keeps its place in the group, and is ready all the while.
func TestPause(t *testing.T) {
	virtually(t, func(t *testing.T) {
		var l ledger
		c := consumertest.Start(t, &program{before: func(e topic.Envelope, s consumer.Shard) error {
			time.Sleep(10 * time.Millisecond) // virtual time
			l.note("%s", s.ID())
			return nil
		}}, consumer.Config{CreateTopics: 2})
		c.Settle()
		app := c.App("p1")
		if err := app.Pause("nosuch-000"); !errors.Is(err, consumer.ErrNotHere) {
			t.Errorf("pause of a shard that is not here: %v", err)
		}
		msgs := repeated(40, "a", "b", "c", "d")
		send(c, msgs...)
		c.Advance(35 * time.Millisecond) // in the middle of a call for many messages
		if err := app.Pause("words-001"); err != nil {
			t.Fatal(err)
		}
		c.Advance(5 * time.Second)
		paused, running := l.count("words-001"), l.count("words-000")
		if paused == 0 || paused > 6 {
			t.Errorf("the paused shard has consumed %d messages, want those that it had begun", paused)
		}
		if running+paused >= len(msgs) || running < 10 {
			t.Errorf("the other has consumed %d messages", running)
		}
		for _, s := range c.Status("p1").Shards {
			if want := s.ID == "words-001"; s.Paused != want || s.Phase != consumer.Running {
				t.Errorf("shard %s: paused %v and %s", s.ID, s.Paused, s.Phase)
			}
			if s.ID == "words-001" {
				if s.Lag == 0 || s.LagTime < 4*time.Second || s.LagTime > 6*time.Second {
					t.Errorf("the paused shard lags by %d messages and %v", s.Lag, s.LagTime)
				}
				if s.Commits == 0 {
					t.Error("what was open is not committed")
				}
			}
		}
		if err := app.Ready(); err != nil {
			t.Errorf("a paused process is not ready: %v", err)
		}
		if err := app.Resume("words-001"); err != nil {
			t.Fatal(err)
		}
		c.Settle()
		checkExact(t, c, countOf(msgs))
		for _, s := range c.Status("p1").Shards {
			if s.LagTime != 0 {
				t.Errorf("shard %s is behind by %v with a lag of %d", s.ID, s.LagTime, s.Lag)
			}
		}
	})
}

// A pause of the application holds for shards that come later, until all is
// resumed. A stop does not wait for it.
func TestPauseOfAll(t *testing.T) {
	virtually(t, func(t *testing.T) {
		c := consumertest.Start(t, &program{}, consumer.Config{CreateTopics: 2})
		c.Settle()
		c.StartProcess("p2")
		c.Until("the shards to be shared", func() bool { return len(runningIn(c, "p2")) == 1 })
		if err := c.App("p1").Pause(""); err != nil {
			t.Fatal(err)
		}
		if err := c.App("p1").Resume(runningIn(c, "p1")[0]); err == nil {
			t.Error("one shard of a paused application is resumed")
		}
		if err := c.Stop("p2"); err != nil {
			t.Fatal(err)
		}
		c.Until("the shards to come back", func() bool { return len(runningIn(c, "p1")) == 2 })
		msgs := repeated(20, "a", "b", "c", "d")
		send(c, msgs...)
		c.Advance(10 * time.Second)
		if n := c.Metric("p1", "pawl_messages_total"); n != 0 {
			t.Errorf("%v messages were consumed in a pause", n)
		}
		if err := c.App("p1").Resume(""); err != nil {
			t.Fatal(err)
		}
		c.Settle()
		checkExact(t, c, countOf(msgs))
		if err := c.App("p1").Pause(""); err != nil {
			t.Fatal(err)
		}
		send(c, "a")
		c.Advance(time.Second)
		begun := time.Now()
		if err := c.Stop("p1"); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begun); took > time.Second {
			t.Errorf("a stop in a pause took %v", took)
		}
	})
}

// What is logged of a pause says what was done, and whoever takes the log may ask
// the application meanwhile.
func TestLogOfPauses(t *testing.T) {
	virtually(t, func(t *testing.T) {
		var l ledger
		asking := &asking{ledger: &l}
		c := consumertest.Start(t, &program{}, consumer.Config{Logger: slog.New(asking)})
		c.Settle()
		app := c.App("p1")
		asking.app.Store(app)
		for _, do := range []func() error{
			func() error { return app.Pause("words-000") },
			func() error { return app.Resume("words-000") },
			func() error { return app.Pause("") },
			func() error { return app.Resume("") },
		} {
			if err := do(); err != nil {
				t.Fatal(err)
			}
		}
		asking.app.Store(nil)
		if got, want := l.all(), []string{"paused shard=words-000", "resumed shard=words-000", "paused shards=all", "resumed shards=all"}; !slices.Equal(got, want) {
			t.Errorf("the log has %q, want %q", got, want)
		}
	})
}

// asking is a log that asks the application for its status at every line, while
// there is one to ask, and notes the line.
type asking struct {
	*ledger
	app atomic.Pointer[consumer.App]
}

func (*asking) Enabled(context.Context, slog.Level) bool { return true }
func (a *asking) WithAttrs([]slog.Attr) slog.Handler     { return a }
func (a *asking) WithGroup(string) slog.Handler          { return a }

func (a *asking) Handle(_ context.Context, r slog.Record) error {
	app := a.app.Load()
	if app == nil {
		return nil
	}
	app.Status()
	line := r.Message
	r.Attrs(func(attr slog.Attr) bool {
		line += " " + attr.String()
		return true
	})
	a.note("%s", line)
	return nil
}

// The group tells who its members are, what they were assigned, and where they
// can be asked.
func TestMembers(t *testing.T) {
	virtually(t, func(t *testing.T) {
		c := consumertest.Start(t, &program{}, consumer.Config{CreateTopics: 3})
		c.Settle()
		c.App("p1").Announce("10.0.0.1:8080") // which the next join tells
		c.StartProcess("p2")
		c.Until("the shards to be shared", func() bool { return len(runningIn(c, "p1")) > 0 && len(runningIn(c, "p2")) > 0 })
		members, err := consumer.Members(t.Context(), c.Host("tool"), "test")
		if err != nil {
			t.Fatal(err)
		}
		if len(members) != 2 || members[0].Instance != "p1" || members[1].Instance != "p2" {
			t.Fatalf("members are %+v, want p1 and p2", members)
		}
		for _, m := range members {
			if got, want := m.Shards, runningIn(c, m.Instance); !slices.Equal(got, want) {
				t.Errorf("%s is said to have %v, want %v", m.Instance, got, want)
			}
		}
		if members[0].Admin != "10.0.0.1:8080" || members[1].Admin != "" {
			t.Errorf("admin addresses are %q and %q", members[0].Admin, members[1].Admin)
		}
		apps, err := consumer.Applications(t.Context(), c.Host("tool"))
		if err != nil || !slices.Equal(apps, []string{"test"}) {
			t.Errorf("applications are %v, %v", apps, err)
		}
		none, err := consumer.Members(t.Context(), c.Host("tool"), "nosuch")
		if err != nil || len(none) != 0 {
			t.Errorf("members of an application that there is not: %v, %v", none, err)
		}
		if top := c.App("p1").Topology(); len(top.Sets) != 1 || top.Sets[0].Changelog != "test.words.changelog" || !slices.Equal(top.Outputs, []string{"lines"}) {
			t.Errorf("topology is %+v", top)
		}
	})
}
