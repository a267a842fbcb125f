package messaging_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/messaging"
	"github.com/pawlstream/pawl/topic"
)

// What is deleted from a delay topic while its keys wait for it is said to be
// gone, and holds them back no longer: neither where it was written by this
// process, nor where it was seen there when it started.
func TestPurgedDelayTopic(t *testing.T) {
	large := strings.Repeat("x", 100<<10) // so that one fetch does not bring all of them
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprint("restarted ", restart), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 1)
				log := newLogged(t)
				cfg := messaging.Config{MaxUnsettled: 5, Retry: messaging.Retry{InPlace: 1, Tiers: []time.Duration{time.Minute}}, Breaker: messaging.Breaker{Failures: -1}, Logger: log.logger}
				b.work("p1", cfg, failing(b, "bad", 1))
				b.running(1, "p1")
				for i := range 40 {
					b.publish(0, fmt.Sprint("k", i), fmt.Sprint("bad", i, large))
					b.Advance(200 * time.Millisecond)
				}
				if restart {
					if err := b.Stop("p1"); err != nil {
						t.Fatal(err)
					}
					b.Restart("p1")
					b.running(1, "p1")
				}
				b.Advance(5 * time.Second)
				if got := b.stats("p1").Partitions[0].Held; got != 40 {
					t.Fatalf("%d messages are held, want 40", got)
				}
				b.Trim("test.worker.retry.1", 0, 40)
				b.Advance(10 * time.Minute)
				b.forget()
				for i := range 40 {
					b.publish(0, fmt.Sprint("k", i), fmt.Sprint("good", i))
				}
				b.Advance(time.Minute)
				good := 0
				for _, v := range b.order() {
					if strings.HasPrefix(v, "good") {
						good++
					}
				}
				st := b.stats("p1")
				if p := st.Partitions[0]; good != 40 || p.Held != 0 || st.Missed == 0 {
					t.Errorf("%d of the 40 later messages were handled, %d are held and %d missed, want all, none and some", good, p.Held, st.Missed)
				}
				if !log.has("messages that waited in a delay topic are gone", "test.worker.retry.1", "messages=") {
					t.Error("nothing was logged of the messages that are gone")
				}
			})
		})
	}
}

// A topic that would lose what waits in it, or of letters all but one of a key,
// is refused at start, by its name.
func TestTopicsThatLose(t *testing.T) {
	for _, tt := range []struct{ topic, setting, value string }{
		{"test.worker.dlq", "cleanup.policy", "compact"},
		{"test.worker.retry.1", "cleanup.policy", "compact,delete"},
		{"test.worker.redrive", "cleanup.policy", "compact"},
		{"test.worker.retry.1", "retention.bytes", "1000"},
		{"test.worker.redrive", "retention.bytes", "0"},
	} {
		t.Run(tt.topic+" "+tt.setting, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 1)
				b.CreateTopic(topic.Bytes(tt.topic).With(topic.Configured(tt.setting, tt.value)), 1)
				w, err := messaging.New(config(t, b.Host("p1"), messaging.Config{StartTimeout: time.Second}), func(context.Context, messaging.Delivery) error { return nil })
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if err := w.Run(ctx); err == nil || !strings.Contains(err.Error(), tt.topic) || !strings.Contains(err.Error(), tt.setting) {
					t.Errorf("run: %v, want an error that names %s and %s", err, tt.topic, tt.setting)
				}
			})
		})
	}
}

// No topic by which messages come back to a consumer can be its input, or take
// its dead letters.
func TestTopicsInTwoRoles(t *testing.T) {
	none := func(context.Context, messaging.Delivery) error { return nil }
	for _, name := range []string{"test.worker.redrive", "test.worker.retry.1", "test.worker.retry.16"} {
		cfg := messaging.Config{Cluster: cluster.Cluster{Brokers: []string{"127.0.0.1:9"}}, Topic: "work", Application: "test", Consumer: "worker", DeadLetters: messaging.DeadLetters{Topic: name}}
		if _, err := messaging.New(cfg, none); err == nil || !strings.Contains(err.Error(), "dead letters go to "+name) {
			t.Errorf("dead letters in %s: %v, want an error", name, err)
		}
		cfg.Topic, cfg.DeadLetters.Topic = name, ""
		if _, err := messaging.New(cfg, none); err == nil || !strings.Contains(err.Error(), "the input is "+name) {
			t.Errorf("input %s: %v, want an error", name, err)
		}
	}
}

// Dead letters that would vanish before anybody has looked at them are warned of
// at start, with the topic, the setting and what mends it: it may be meant so.
func TestLettersThatVanishAreSaid(t *testing.T) {
	for _, tt := range []struct{ setting, value, want string }{
		{"retention.ms", "3600000", "vanish after 1h0m0s"},
		{"retention.bytes", "1000000", "vanish once a partition holds more than 1000000 bytes"},
		{"retention.ms", "604800000", ""},
	} {
		t.Run(tt.setting+"="+tt.value, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 1)
				b.CreateTopic(topic.Bytes("test.worker.dlq").With(topic.Configured(tt.setting, tt.value)), 1)
				log := newLogged(t)
				b.work("p1", messaging.Config{Logger: log.logger}, nil)
				b.running(1, "p1")
				said := log.has("level=WARN", tt.want, "topic=test.worker.dlq", tt.setting+"="+tt.value, "pawl topic alter test.worker.dlq --set "+tt.setting)
				if said != (tt.want != "") {
					t.Errorf("said: %v, want %v", said, tt.want != "")
				}
			})
		})
	}
}
