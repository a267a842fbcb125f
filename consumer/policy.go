package consumer

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Start is where a shard begins that has never consumed.
type Start struct {
	place string
	at    time.Time
}

// The places to start from besides a time.
var (
	Earliest = Start{}                // the first message that there is
	Latest   = Start{place: "latest"} // the first message that comes after the shard's first start
)

// StartAt starts from the first message whose timestamp is t or later.
func StartAt(t time.Time) Start { return Start{place: "time", at: t} }

// ParseStart parses what Start.String returns: earliest, latest, or a time as
// RFC 3339 writes it.
func ParseStart(s string) (Start, error) {
	switch s {
	case "", "earliest":
		return Earliest, nil
	case "latest":
		return Latest, nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return Start{}, fmt.Errorf("start %q: want earliest, latest or a time such as 2006-01-02T15:04:05Z", s)
	}
	return StartAt(t), nil
}

// String returns earliest, latest, or the time.
func (s Start) String() string {
	switch s.place {
	case "":
		return "earliest"
	case "time":
		return s.at.Format(time.RFC3339)
	}
	return s.place
}

func (s Start) validate() error {
	if s.place == "time" && s.at.Before(time.Unix(0, 0)) {
		return fmt.Errorf("start %v: want a time after 1970", s.at)
	}
	return nil
}

// OnFailure is the policy for a message that fails alone, with an error that
// is not marked by [Transient].
type OnFailure string

// The policies for failures. Nothing is dropped in silence: what is skipped
// or dead-lettered is counted in pawl_dropped_total and
// pawl_dead_letters_total.
const (
	StopShard  OnFailure = "stop"        // the shard stops, backs off, and tries again: nothing passes the message
	Retry      OnFailure = "retry"       // consume it again after a back-off, for ever
	DeadLetter OnFailure = "dead-letter" // publish it to the dead-letter topic, in the transaction that passes it
	Skip       OnFailure = "skip"        // pass it, and count it
)

func (p OnFailure) validate() error {
	return oneOf("failure policy", p, StopShard, Retry, DeadLetter, Skip)
}

// OutOfRange is the decision about messages that were not consumed and are no
// longer there.
type OutOfRange string

// The decisions about missing messages.
const (
	FailShard    OutOfRange = "fail"     // the shard fails, and says which messages are missing
	GoToEarliest OutOfRange = "earliest" // go on with the first message that is there; the missing ones are logged and counted
	GoToLatest   OutOfRange = "latest"   // go on with the next message that comes; all others are logged and counted
)

func (o OutOfRange) validate() error {
	return oneOf("decision about offsets out of range", o, FailShard, GoToEarliest, GoToLatest)
}

// oneOf refuses a value that is neither empty nor one of the choices.
func oneOf[T ~string](what string, value T, choices ...T) error {
	if value == "" || slices.Contains(choices, value) {
		return nil
	}
	names := make([]string, len(choices))
	for i, c := range choices {
		names[i] = string(c)
	}
	return fmt.Errorf("%s %q: want %s", what, string(value), strings.Join(names, ", "))
}
