package messaging

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pawlstream/pawl/topic"
)

// Letter is a dead letter: a message as it was, and why it was set aside.
type Letter struct {
	Partition int32 // of the dead-letter topic
	Offset    int64 // there
	Time      time.Time

	Key     []byte         // nil for a null key
	Value   []byte         // nil for a null value
	Headers []topic.Header // the message's own

	// Where it was consumed, by which group, and the timestamp it had there.
	Topic           string
	TopicPartition  int32
	TopicOffset     int64
	TopicTimestamp  time.Time
	Group           string
	Attempts        int
	Reason          string // failed, rejected, decode or crash
	Error           string // the last
	History         []Failure
	Redrives        int  // how often it came back before
	FromElsewhere   bool // it says not where it comes from: Pawl did not write it
	originalHistory history

	Outcome *Outcome // what became of it; nil while nothing did
}

// Failure is one failed attempt at a message.
type Failure struct {
	Attempt int       `json:"attempt"`
	Time    time.Time `json:"time"`
	Error   string    `json:"error"`
}

// Outcome says what became of a dead letter.
type Outcome struct {
	Action string    `json:"action"` // Redriven or Discarded
	Time   time.Time `json:"time"`
	Why    string    `json:"why,omitempty"` // as who did it said
	To     string    `json:"to,omitempty"`  // the topic that it was sent to
}

// What can become of a dead letter.
const (
	Redriven  = "redriven"
	Discarded = "discarded"
)

func newLetter(e topic.Envelope) Letter {
	h, ok := parseHistory(e.Headers)
	l := Letter{
		Partition: e.Partition, Offset: e.Offset, Time: e.Timestamp,
		Key: e.Key, Value: e.Value, Headers: own(e.Headers),
		Topic: h.topic, TopicPartition: h.partition, TopicOffset: h.offset, TopicTimestamp: time.UnixMilli(h.timestamp),
		Group: h.group, Attempts: h.attempts, Reason: h.reason, Error: h.err, Redrives: h.redrives,
		FromElsewhere: !ok, originalHistory: h,
	}
	for _, f := range h.past {
		l.History = append(l.History, Failure{f.attempt, time.UnixMilli(f.at), f.err})
	}
	return l
}

// letterJSON is the form of an exported letter. Bytes are in base64; a value
// that is text is there as text, too.
type letterJSON struct {
	Partition int32        `json:"partition"`
	Offset    int64        `json:"offset"`
	Time      time.Time    `json:"time"`
	Key       *[]byte      `json:"key"`
	Value     *[]byte      `json:"value"`
	KeyText   *string      `json:"key_text,omitempty"`
	ValueText *string      `json:"value_text,omitempty"`
	Headers   []headerJSON `json:"headers,omitempty"`
	Topic     string       `json:"topic,omitempty"`
	TopicPart int32        `json:"topic_partition"`
	TopicOff  int64        `json:"topic_offset"`
	TopicMs   int64        `json:"topic_timestamp_ms"`
	Group     string       `json:"group,omitempty"`
	Attempts  int          `json:"attempts"`
	Reason    string       `json:"reason,omitempty"`
	Error     string       `json:"error,omitempty"`
	History   []Failure    `json:"history,omitempty"`
	Redrives  int          `json:"redrives"`
	Outcome   *Outcome     `json:"outcome,omitempty"`
}

type headerJSON struct {
	Key   string  `json:"key"`
	Value *[]byte `json:"value"`
}

// MarshalJSON encodes the letter whole: nothing of the message is lost.
func (l Letter) MarshalJSON() ([]byte, error) {
	out := letterJSON{
		Partition: l.Partition, Offset: l.Offset, Time: safeTime(l.Time), Key: blob(l.Key), Value: blob(l.Value), KeyText: asText(l.Key), ValueText: asText(l.Value),
		Topic: l.Topic, TopicPart: l.TopicPartition, TopicOff: l.TopicOffset, TopicMs: l.TopicTimestamp.UnixMilli(), Group: l.Group,
		Attempts: l.Attempts, Reason: l.Reason, Error: l.Error, Redrives: l.Redrives, Outcome: l.Outcome,
	}
	for _, h := range l.Headers {
		out.Headers = append(out.Headers, headerJSON{h.Key, blob(h.Value)})
	}
	for _, f := range l.History {
		f.Time = safeTime(f.Time)
		out.History = append(out.History, f)
	}
	return json.Marshal(out)
}

func blob(b []byte) *[]byte {
	if b == nil {
		return nil
	}
	return &b
}

func asText(b []byte) *string {
	s := string(b)
	if b == nil || clean(s, len(s)+1) != s {
		return nil
	}
	return &s
}

// safeTime keeps a time within what JSON can say.
func safeTime(t time.Time) time.Time {
	if y := t.UTC().Year(); y < 0 || y > 9999 {
		return time.UnixMilli(0).UTC()
	}
	return t.UTC()
}

// Query says which dead letters are meant: those that fit all that is set. The
// zero value means all of which nothing became yet.
type Query struct {
	Partition    *int32    // of the dead-letter topic
	From, To     int64     // offsets from From on, and, if To is not 0, below it
	Reason       string    // exactly
	Error        string    // a part of the last error
	Key          []byte    // exactly; nil: any
	NullKey      bool      // it has none
	Header       string    // it has such a header
	HeaderValue  string    // with this value, if not empty
	Since, Until time.Time // when it became a dead letter: from Since on, before Until
	Settled      bool      // also those that were redriven or discarded
}

func (q Query) fits(l *Letter) bool {
	switch {
	case q.Partition != nil && l.Partition != *q.Partition,
		l.Offset < q.From, q.To > 0 && l.Offset >= q.To,
		q.Reason != "" && l.Reason != q.Reason,
		!strings.Contains(l.Error, q.Error),
		q.Key != nil && (l.Key == nil || !bytes.Equal(l.Key, q.Key)),
		q.NullKey && l.Key != nil,
		!q.Since.IsZero() && l.Time.Before(q.Since),
		!q.Until.IsZero() && !l.Time.Before(q.Until),
		!q.Settled && l.Outcome != nil:
		return false
	}
	return q.Header == "" || slices.ContainsFunc(l.Headers, func(h topic.Header) bool {
		return h.Key == q.Header && (q.HeaderValue == "" || string(h.Value) == q.HeaderValue)
	})
}

// outcomesFormat is the version of an outcome's record. Its key is the ID of
// the dead-letter topic, the partition and the offset, with slashes between
// them; its value is a JSON object. The form is frozen.
const outcomesFormat = 1

type outcomeRecord struct {
	V      int    `json:"v"`
	Action string `json:"action"`
	At     int64  `json:"at"` // milliseconds
	Why    string `json:"why,omitempty"`
	To     string `json:"to,omitempty"`
}

// letterID says which letter of a dead-letter topic is meant.
type letterID struct {
	partition int32
	offset    int64
}

func outcomeKey(dlq topic.ID, id letterID) []byte {
	return fmt.Appendf(nil, "%s/%d/%d", dlq, id.partition, id.offset)
}

// parseOutcome reads a record of an outcomes topic. ok is false for one of
// another topic, or of a form that is not known.
func parseOutcome(dlq topic.ID, key, value []byte) (id letterID, o Outcome, ok bool) {
	rest, found := strings.CutPrefix(string(key), dlq.String()+"/")
	if !found {
		return id, o, false
	}
	if n, err := fmt.Sscanf(rest, "%d/%d", &id.partition, &id.offset); n != 2 || err != nil || !bytes.Equal(outcomeKey(dlq, id), key) {
		return id, o, false
	}
	if value == nil {
		return id, o, true // forgotten
	}
	var r outcomeRecord
	if json.Unmarshal(value, &r) != nil || r.V != outcomesFormat || r.Action == "" {
		return id, o, false
	}
	return id, Outcome{Action: r.Action, Time: time.UnixMilli(r.At), Why: r.Why, To: r.To}, true
}
