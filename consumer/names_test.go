package consumer

import (
	"strings"
	"testing"

	"github.com/pawlstream/pawl/topic"
)

// Names are frozen.
func TestNames(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{string(shardID("words", 0)), "words-000"},
		{string(shardID("words", 1234)), "words-1234"},
		{TransactionalID("app", shardID("words", 7)), "app.words-007"},
		{ChangelogTopic("app", "words"), "app.words.changelog"},
		{DeadLetterTopic("app", "words"), "app.words.dlq"},
	} {
		if c.got != c.want {
			t.Errorf("%s, want %s", c.got, c.want)
		}
	}
	for _, id := range []ShardID{"words-000", "a-b-123", "words-1234"} {
		if set, n, ok := id.split(); !ok || shardID(set, n) != id {
			t.Errorf("%s splits into %q, %d, %v", id, set, n, ok)
		}
	}
	for _, id := range []ShardID{"", "words", "words-", "words-1", "words-0001", "words--01", "words-abc"} {
		if set, n, ok := id.split(); ok {
			t.Errorf("%q splits into %q, %d", id, set, n)
		}
	}
}

// Two applications whose names could meet: no dot in a name, so that the
// first dot ends it.
func TestApplicationNamesCannotMeet(t *testing.T) {
	for _, name := range []string{"", "a.b", "A", "a_b", "a b", "ä", strings.Repeat("a", 250)} {
		if CheckApplication(name) == nil {
			t.Errorf("application name %q is taken", name)
		}
	}
	for _, name := range []string{"a", "a-b", "0", strings.Repeat("a", 249)} {
		if err := CheckApplication(name); err != nil {
			t.Errorf("application name %q: %v", name, err)
		}
	}
	if err := checkNames("app", strings.Repeat("w", 240), []string{"w"}); err == nil || !strings.Contains(err.Error(), "249") {
		t.Errorf("names over 249 bytes: %v", err)
	}
	if err := checkNames("app", "app.words.changelog", []string{"app.words.changelog"}); err == nil {
		t.Error("an application may consume its own changelog")
	}
}

type plain struct{ topics []*topic.Description }

func (p *plain) Topics() []*topic.Description                        { return p.topics }
func (*plain) Consume(topic.Envelope, Shard, *topic.Publisher) error { return nil }
func (*plain) Flush(Shard, *topic.Publisher) error                   { return nil }

func TestMakeSets(t *testing.T) {
	a, b, c := topic.String("a").Description, topic.String("b").With(topic.Set("joined")).Description, topic.String("c").With(topic.Set("joined")).Description
	sets, err := makeSets("app", []Consumer{&plain{[]*topic.Description{a}}, &plain{[]*topic.Description{c, b}}})
	if err != nil {
		t.Fatal(err)
	}
	if len(sets) != 2 || sets[0].name != "a" || sets[1].name != "joined" || sets[1].topics[0].Name() != "b" {
		t.Errorf("sets: %+v", sets)
	}
	for _, bad := range [][]Consumer{
		nil,
		{&plain{}},
		{&plain{[]*topic.Description{a, a}}},
		{&plain{[]*topic.Description{a}}, &plain{[]*topic.Description{a}}},
		{&plain{[]*topic.Description{b}}, &plain{[]*topic.Description{c}}},
	} {
		if _, err := makeSets("app", bad); err == nil {
			t.Errorf("consumers %+v are taken", bad)
		}
	}
}

func TestConfigSaysEverythingThatIsWrong(t *testing.T) {
	_, err := New(Config{Application: "A.b", CommitInterval: -1, TransactionBytes: 5, OnFailure: "maybe", OnOffsetOutOfRange: "perhaps", Memory: 1})
	if err == nil {
		t.Fatal("a wrong configuration is taken")
	}
	for _, want := range []string{"A.b", "no brokers", "no state directory", "commit interval is -1ns", "transaction bytes is 5", `"maybe"`, `"perhaps"`, "memory is 1", "no consumers"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q:\n%v", want, err)
		}
	}
}
