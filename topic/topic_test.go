package topic_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/pawlstream/pawl/topic"
)

func TestCheckName(t *testing.T) {
	for _, tt := range []struct {
		name string
		want string // in the error; empty for none
	}{
		{"a", ""},
		{"Orders_2.eu-west", ""},
		{"...", ""},
		{"-", ""},
		{strings.Repeat("x", topic.NameMax), ""},
		{"", "a topic has an empty name"},
		{".", `topic name "." is not allowed`},
		{"..", `topic name ".." is not allowed`},
		{strings.Repeat("x", topic.NameMax+1), "has 250 bytes, and Kafka takes 249"},
		{"a b", `topic name "a b" holds ' '`},
		{"a/b", `holds '/'`},
		{"a:b", `holds ':'`},
		{"café", `holds 'é'`},
		{"\xff", `holds '�'`},
		{"a\n", `holds '\n'`},
		{"a\x00", `holds '\x00'`},
	} {
		err := topic.CheckName(tt.name)
		if tt.want == "" && err != nil {
			t.Errorf("CheckName(%q) = %v, want nil", tt.name, err)
		}
		if tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("CheckName(%q) = %v, want an error with %q", tt.name, err, tt.want)
		}
	}
}

func TestSettings(t *testing.T) {
	plain := topic.String("words")
	if got, want := describe(plain.Description), "words of set words, 0 partitions, map[]"; got != want {
		t.Errorf("without settings: %s, want %s", got, want)
	}

	all := plain.With(topic.Partitions(8), topic.Compacted(), topic.Set("text"), topic.Configured("retention.ms", "1000"))
	if got, want := describe(all.Description), "words of set text, 8 partitions, map[cleanup.policy:compact retention.ms:1000]"; got != want {
		t.Errorf("with settings: %s, want %s", got, want)
	}
	if plain.Set() != "words" || plain.Partitions() != 0 || plain.Settings() != nil {
		t.Errorf("With changed its receiver: %s, %d, %v", plain.Set(), plain.Partitions(), plain.Settings())
	}

	// Topics that come from one share nothing that a setting changes.
	more := all.With(topic.Configured("retention.ms", "2000"))
	if got := all.Settings()["retention.ms"]; got != "1000" {
		t.Errorf("a setting of a copy changed the original to %s", got)
	}
	more.Settings()["retention.ms"] = "3000"
	if got := more.Settings()["retention.ms"]; got != "2000" {
		t.Errorf("a write to the settings that were returned changed the topic's to %s", got)
	}

	// A copy with settings publishes to itself, as its own description.
	p, outs := record()
	if err := all.Publish(p, "a"); err != nil {
		t.Fatal(err)
	}
	if (*outs)[0].Topic != all.Description {
		t.Errorf("published to %p, want %p", (*outs)[0].Topic, all.Description)
	}
}

func describe(d *topic.Description) string {
	return fmt.Sprintf("%s of set %s, %d partitions, %v", d, d.Set(), d.Partitions(), d.Settings())
}

// What is wrong with a topic is a mistake in the program, found when it starts.
func TestPanics(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func()
		want string
	}{
		{"a bad name", func() { topic.String("a b") }, `pawl: topic name "a b" holds ' ', and Kafka takes only letters, digits, '.', '_' and '-'`},
		{"no codec", func() { topic.New[int]("a", nil) }, "pawl: topic a has no codec"},
		{"no partitions", func() { topic.Partitions(0) }, "pawl: a topic can't have 0 partitions"},
		{"a bad set", func() { topic.Set("a/b") }, `pawl: co-partitioned set: topic name "a/b" holds '/', and Kafka takes only letters, digits, '.', '_' and '-'`},
	} {
		func() {
			defer func() {
				if got := recover(); got != tt.want {
					t.Errorf("%s: panic %v, want %s", tt.name, got, tt.want)
				}
			}()
			tt.do()
		}()
	}
}

func TestPartition(t *testing.T) {
	parts := []topic.Partition{{"b", 0}, {"a", 10}, {"a", 2}, {"a", -1 << 31}, {"a", 1<<31 - 1}}
	slices.SortFunc(parts, topic.Partition.Compare)
	if got, want := fmt.Sprint(parts), "[a--2147483648 a-2 a-10 a-2147483647 b-0]"; got != want {
		t.Errorf("in order: %s, want %s", got, want)
	}
	if c := parts[1].Compare(parts[1]); c != 0 {
		t.Errorf("compared with itself: %d", c)
	}
}

// A message goes through a topic unchanged, whichever of the two ways it is
// read by.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := total{rapid.String().Draw(t, "word"), rapid.Int().Draw(t, "n")}
		p, outs := record()
		if err := totals.Publish(p, want); err != nil {
			t.Fatal(err)
		}
		o := (*outs)[0]
		e := topic.Envelope{Topic: o.Topic, Key: o.Key, Value: o.Value}
		got, ok, err := totals.Message(e)
		if got != want || !ok || err != nil {
			t.Errorf("%#v came back as %#v, %t, %v", want, got, ok, err)
		}
		untyped, ok, err := e.Message()
		if !reflect.DeepEqual(untyped, any(want)) || !ok || err != nil {
			t.Errorf("%#v came back without its type as %#v, %t, %v", want, untyped, ok, err)
		}
		if string(o.Key) != want.Word {
			t.Errorf("key %q, want %q", o.Key, want.Word)
		}
	})
}

// An ID in a file or a metric reads as Kafka's tools print it.
func TestIDInJSON(t *testing.T) {
	got, err := json.Marshal(map[string]topic.ID{"id": {}})
	if err != nil || string(got) != `{"id":"AAAAAAAAAAAAAAAAAAAAAA"}` {
		t.Errorf("%s, %v", got, err)
	}
}
