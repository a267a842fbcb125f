package consumer_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/consumertest"
	"github.com/pawlstream/pawl/internal/changelog"
	"github.com/pawlstream/pawl/store"
	"github.com/pawlstream/pawl/topic"
)

// named is a table of names, which a null value deletes.
var named = store.NewTable("named", store.String, store.String)

// naming keeps the last value of each key.
func naming() *program {
	return &program{consume: func(e topic.Envelope, s consumer.Shard, _ *topic.Publisher) error {
		if e.Value == nil {
			return named.Delete(s.Transaction(), string(e.Key))
		}
		return named.Put(s.Transaction(), string(e.Key), string(e.Value))
	}}
}

func namesOf(c *consumertest.Cluster) string {
	var all []string
	c.View("words-000", func(tx *store.Transaction) {
		for k, v := range named.All(tx) {
			all = append(all, k+"="+v)
		}
	})
	return strings.Join(all, " ")
}

// C12: a delete followed by a write of the same key. However the messages are
// spread over transactions, and whatever is restored from, the write stays.
func TestRestoreAppliesDeletesInOrder(t *testing.T) {
	foo, bar, del, baz := "1=Foo", "2=Bar", "2", "2=Baz"
	publish := func(c *consumertest.Cluster, msgs ...string) {
		release := c.Hold("p1", "Fetch")
		for _, m := range msgs {
			key, value, ok := strings.Cut(m, "=")
			if ok {
				consumertest.PublishKeyed(c, words, key, value)
			} else {
				c.PublishTombstone(words, key)
			}
		}
		release()
		c.Settle()
	}
	for name, script := range map[string]func(c *consumertest.Cluster){
		"one transaction":        func(c *consumertest.Cluster) { publish(c, foo, bar, del, baz) },
		"two transactions":       func(c *consumertest.Cluster) { publish(c, foo, bar); publish(c, del, baz) },
		"one each":               func(c *consumertest.Cluster) { publish(c, foo); publish(c, bar); publish(c, del); publish(c, baz) },
		"delete at the boundary": func(c *consumertest.Cluster) { publish(c, foo, bar, del); publish(c, baz) },
		"delete in an abort": func(c *consumertest.Cluster) {
			publish(c, foo, bar)
			c.Fail("p1", "EndTxn", "", 2)
			publish(c, del)
			publish(c, baz)
		},
		"stored in between": func(c *consumertest.Cluster) { publish(c, foo, bar, del); c.Advance(3 * time.Minute); publish(c, baz) },
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T) {
				c := consumertest.Start(t, naming(), consumer.Config{})
				c.Settle()
				script(c)
				const want = "1=Foo 2=Baz"
				if got := namesOf(c); got != want {
					t.Errorf("before the restore: %s, want %s", got, want)
				}
				c.Crash("p1")
				c.Restart("p1")
				c.Settle()
				if got := namesOf(c); got != want {
					t.Errorf("after a crash: %s, want %s", got, want)
				}
				if err := c.Stop("p1"); err != nil {
					t.Fatal(err)
				}
				c.StartProcess("p2") // with no local state
				c.Settle()
				if got := namesOf(c); got != want {
					t.Errorf("restored from the changelog: %s, want %s", got, want)
				}
			})
		})
	}
}

// C16: a process takes over while its predecessor's transaction is open: it has
// all of the committed work and none of the open one.
func TestTakeoverWhileATransactionIsOpen(t *testing.T) {
	virtually(t, func(t *testing.T) {
		c := consumertest.Start(t, &program{}, consumer.Config{SessionTimeout: 6 * time.Second})
		send(c, repeated(30, "a", "b")...)
		c.Settle()
		release := c.Hold("p1", "EndTxn") // the records are on the broker, the end is not
		send(c, "a", "open")
		c.Advance(20 * time.Millisecond)
		c.Freeze("p1")
		c.StartProcess("p2")
		c.Advance(15 * time.Second)
		c.Settle()
		checkStored(t, c, "words-000", map[string]int{"a": 16, "b": 15, "open": 1})
		release()
		c.Thaw("p1")
		c.Advance(15 * time.Second)
		c.Settle()
		checkExact(t, c, map[string]int{"a": 16, "b": 15, "open": 1})
	})
}

// A changelog that is lost, trimmed or created anew: the shard says so and does
// not start from nothing, until it is told to.
func TestLostChangelog(t *testing.T) {
	const log = "test.words.changelog"
	for name, c := range map[string]struct {
		lose  func(c *consumertest.Cluster)
		fresh bool // the process has no local copy
		want  string
	}{
		"deleted":                  {func(c *consumertest.Cluster) { c.DeleteTopic(log) }, false, "state"},
		"deleted, nothing local":   {func(c *consumertest.Cluster) { c.DeleteTopic(log) }, true, "state"},
		"trimmed, nothing local":   {func(c *consumertest.Cluster) { c.Trim(log, 0, 8) }, true, "begins at offset 8"},
		"set to delete by someone": {func(c *consumertest.Cluster) { c.SetTopic(log, "cleanup.policy", "delete") }, false, "cleanup.policy=delete"},
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T) {
				p := &program{}
				cl := consumertest.Start(t, p, consumer.Config{})
				for range 3 {
					send(cl, "a", "b")
					cl.Settle()
				}
				cl.Advance(5 * time.Second) // the group is advised
				if err := cl.Stop("p1"); err != nil {
					t.Fatal(err)
				}
				c.lose(cl)
				name := "p1"
				if c.fresh {
					name = "p2"
				}
				cl.StartApp(name, consumer.Config{}, p)
				why := ""
				if strings.Contains(c.want, "policy") {
					err := cl.Wait(name)
					if err == nil {
						t.Fatal("the process runs")
					}
					why = err.Error()
				} else {
					cl.Until("the shard to fail", func() bool {
						st := cl.Status(name).Shards
						return len(st) == 1 && st[0].Phase == consumer.Failed
					})
					why = cl.Status(name).Shards[0].Reason
					if !strings.Contains(why, "AcceptStateLoss") {
						t.Errorf("the reason does not say what to do: %s", why)
					}
					if err := cl.Stop(name); err != nil {
						t.Error(err)
					}
				}
				if !strings.Contains(why, c.want) {
					t.Errorf("the reason does not say %q: %s", c.want, why)
				}
				if strings.Contains(c.want, "policy") {
					return
				}
				// Told to, it starts from nothing: the state is that of all
				// messages again, if they are still there.
				cl.StartApp(name, consumer.Config{AcceptStateLoss: true}, p)
				cl.Settle()
				if got := stored(cl, "words-000"); len(got) == 0 && name == "p1" {
					t.Error("nothing was consumed again")
				}
				if got := cl.Metric(name, "pawl_state_discarded_total"); got < 1 {
					t.Errorf("a loss that was accepted is counted %v times, want 1 at least", got)
				}
				send(cl, "c")
				cl.Settle()
				if got := stored(cl, "words-000")["c"]; got != 1 {
					t.Errorf("after the loss, c is counted %d times, want 1", got)
				}
			})
		})
	}
}

// Where records were deleted from the changelog, it can't make a local copy again:
// one that does not open, or can't be resumed from, is left as it is for whoever
// can mend it, and the shard says what is wrong with it, until the loss is accepted.
func TestOnlyCopyIsKept(t *testing.T) {
	for name, c := range map[string]struct {
		harm func(t *testing.T, c *consumertest.Cluster, dir string)
		want string
	}{
		"damaged": {func(t *testing.T, _ *consumertest.Cluster, dir string) {
			manifests, err := filepath.Glob(filepath.Join(dir, "MANIFEST-*"))
			if err != nil || len(manifests) == 0 {
				t.Fatalf("manifests of %s: %v, %v", dir, manifests, err)
			}
			for _, name := range manifests {
				if err := os.WriteFile(name, []byte("damaged"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}, "corrupt"},
		"too old": {func(t *testing.T, c *consumertest.Cluster, _ string) {
			c.StartProcess("p2")
			send(c, "a", "b")
			c.Settle()
			if err := c.Stop("p2"); err != nil {
				t.Fatal(err)
			}
			c.Advance(48 * time.Hour)
		}, string(changelog.TooOld)},
		"marked": {func(t *testing.T, _ *consumertest.Cluster, dir string) {
			if err := os.WriteFile(filepath.Join(dir, "DISCARD"), []byte("the disk fails\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, "the disk fails"},
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T) {
				p, state := &program{}, t.TempDir()
				cl := consumertest.Start(t, p, consumer.Config{})
				cl.Settle()
				if err := cl.Stop("p1"); err != nil {
					t.Fatal(err)
				}
				cl.StartApp("own", consumer.Config{StateDir: state}, p)
				for range 3 {
					send(cl, "a", "b")
					cl.Settle()
				}
				if err := cl.Stop("own"); err != nil {
					t.Fatal(err)
				}
				dir := filepath.Join(state, "test", "words-000")
				c.harm(t, cl, dir)
				cl.Trim("test.words.changelog", 0, 4)
				before := contents(t, dir)

				cl.StartApp("own", consumer.Config{StateDir: state}, p)
				failed := func() bool {
					st := cl.Status("own").Shards
					return len(st) == 1 && st[0].Phase == consumer.Failed
				}
				cl.Until("the shard to fail", failed)
				cl.Advance(5 * time.Minute) // it has tried again
				cl.Until("the shard to fail again", failed)
				reason := cl.Status("own").Shards[0].Reason
				for _, want := range []string{c.want, "begins at offset 4", dir, consumer.ErrStateLost.Error(), "AcceptStateLoss"} {
					if !strings.Contains(reason, want) {
						t.Errorf("the reason does not say %q: %s", want, reason)
					}
				}
				if got := cl.Metric("own", "pawl_state_discarded_total"); got != 0 {
					t.Errorf("%v copies were discarded, want none", got)
				}
				if err := cl.Stop("own"); err != nil {
					t.Error(err)
				}
				after := contents(t, dir)
				for name, b := range before {
					// What was opened and closed again has other files of the storage library's own.
					if got, ok := after[name]; strings.HasSuffix(name, ".sst") && got != b || c.want == "corrupt" && !ok {
						t.Errorf("%s of the copy is not what it was", name)
					}
				}

				cl.StartApp("own", consumer.Config{StateDir: state, AcceptStateLoss: true}, p)
				cl.Settle()
				send(cl, "c")
				cl.Settle()
				if got := stored(cl, "words-000")["c"]; got != 1 {
					t.Errorf("after the loss, c is counted %d times, want 1", got)
				}
				if got := cl.Metric("own", "pawl_state_discarded_total"); got != 2 {
					t.Errorf("a discard and the loss that was accepted are counted as %v, want 2", got)
				}
			})
		})
	}
}

// contents returns the files of a directory.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string]string)
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		files[e.Name()] = string(b)
	}
	return files
}

// C09, C46: what is left at the end of the changelog is gaps: aborted data,
// markers, and what compaction has taken. A restore ends all the same.
func TestRestoreOverAbortedTail(t *testing.T) {
	virtually(t, func(t *testing.T) {
		c := consumertest.Start(t, &program{}, consumer.Config{})
		send(c, "a", "b")
		c.Settle()
		for range 5 { // five aborted transactions at the end
			c.Fail("p1", "EndTxn", "", 3)
			send(c, "c")
			c.Settle()
		}
		c.Trim("test.words.changelog", 0, 1)
		if err := c.Stop("p1"); err != nil {
			t.Fatal(err)
		}
		c.Restart("p1")
		c.Settle()
		checkStored(t, c, "words-000", map[string]int{"a": 1, "b": 1, "c": 5})
		checkExact(t, c, map[string]int{"a": 1, "b": 1, "c": 5})
	})
}

// A changelog record in a newer format is refused by name, and nothing is
// written over it.
func TestNewerFormatIsRefused(t *testing.T) {
	virtually(t, func(t *testing.T) {
		c := consumertest.Start(t, &program{}, consumer.Config{})
		send(c, "a")
		c.Settle()
		if err := c.Stop("p1"); err != nil {
			t.Fatal(err)
		}
		log := topic.Bytes("test.words.changelog")
		c.PublishRecord(topic.Out{Topic: log.Description, Key: changelog.OffsetsKey, Value: []byte(`{"v":2}`)})
		c.StartProcess("p2")
		c.Until("the shard to fail", func() bool {
			st := c.Status("p2").Shards
			return len(st) == 1 && st[0].Phase == consumer.Failed
		})
		if why := c.Status("p2").Shards[0].Reason; !strings.Contains(why, "format 2") {
			t.Errorf("the reason is %s", why)
		}
		if err := c.App("p2").View("words-000", func(*store.Transaction) error { return nil }); !errors.Is(err, consumer.ErrNotHere) {
			t.Errorf("a query to a shard that is not restored: %v", err)
		}
	})
}
