package wordcount

import (
	"slices"
	"testing"

	"github.com/pawlstream/pawl/consumertest"
)

func TestCounter(t *testing.T) { // a real store, no broker
	s := consumertest.NewShard(t, Counter{})
	for _, w := range []string{"a", "b", "a"} {
		s.Consume(words, w, "")
	}
	s.Commit() // runs Flush
	if got, want := consumertest.Published(s, totals), []Total{{"a", 2}, {"b", 1}}; !slices.Equal(got, want) {
		t.Errorf("totals = %v, want %v", got, want)
	}
}

// What was counted is there after a restart, and what an aborted transaction
// counted is not.
func TestCounterRestarts(t *testing.T) {
	s := consumertest.NewShard(t, Counter{})
	s.Consume(words, "a", "")
	s.Commit()
	s.Consume(words, "a", "")
	s.Abort()
	s.Reopen()
	s.Consume(words, "a", "")
	s.Commit()
	if got, want := consumertest.Published(s, totals), []Total{{"a", 1}, {"a", 2}}; !slices.Equal(got, want) {
		t.Errorf("totals = %v, want %v", got, want)
	}
}
