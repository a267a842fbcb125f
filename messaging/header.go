package messaging

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pawlstream/pawl/topic"
)

// headerPrefix begins every header of Pawl's.
const headerPrefix = "pawl-"

// The headers that a retried message and a dead letter have, after those of the
// message itself. Numbers are decimal, times are milliseconds since 1970. The
// names and forms are frozen; a reader passes over what it does not know.
const (
	headerTopic     = "pawl-topic"     // where the message was consumed first
	headerTopicID   = "pawl-topic-id"  // the ID of that topic: it may be another one by now
	headerPartition = "pawl-partition" //
	headerOffset    = "pawl-offset"    //
	headerTimestamp = "pawl-timestamp" // the one that it had there
	headerGroup     = "pawl-group"     // the group that consumed it
	headerAttempts  = "pawl-attempts"  // that have failed
	headerHop       = "pawl-hop"       // how often it was written to a delay topic
	headerDue       = "pawl-due"       // not to be handled before
	headerDelay     = "pawl-delay"     // how long before that it was written, in milliseconds
	headerLeft      = "pawl-left"      // how long it waits after that, in milliseconds: longer than a delay topic keeps it
	headerReason    = "pawl-reason"    // why it is a dead letter
	headerError     = "pawl-error"     // the last error
	headerFailed    = "pawl-failed"    // when the last attempt failed
	headerHistory   = "pawl-history"   // the last failures, one a line: attempt, time, error
	headerRedrives  = "pawl-redrives"  // how often it came back from the dead letters
)

// What errors may take in headers. All headers of one message together stay
// below 8 kB, however often it goes round.
const (
	errorMax        = 2048
	historyErrorMax = 160
	historyMax      = 8
)

// history is what Pawl knows of a message beside the message.
type history struct {
	topic     string
	topicID   topic.ID
	partition int32
	offset    int64
	timestamp int64 // milliseconds
	group     string

	attempts int // that have failed
	hop      int
	due      int64 // milliseconds; 0: at once
	delay    int64 // milliseconds; 0: unknown
	left     int64 // milliseconds that it waits once it is due
	reason   string
	err      string
	failed   int64
	past     []failure
	redrives int
}

// waits returns how long a message that is read now is to wait, by the wall
// clock. It is never longer than the delay that was asked for: a clock that was
// set back, or another machine's that is late, holds up nothing for longer.
func (h *history) waits(wall time.Time) time.Duration {
	if h.due == 0 {
		return 0
	}
	most := tierMax
	if h.delay > 0 && h.delay < most.Milliseconds() {
		most = time.Duration(h.delay) * time.Millisecond
	}
	return max(0, min(most, time.UnixMilli(h.due).Sub(wall)))
}

// leftAt returns how long a message that is due is still to wait, by the wall
// clock: what it did not wait before, less what has passed since it was due. It
// is never longer than what was left then, whatever became of the clock.
func (h *history) leftAt(wall time.Time) time.Duration {
	if h == nil || h.left <= 0 {
		return 0
	}
	left := time.Duration(min(h.left, tierMax.Milliseconds())) * time.Millisecond
	return max(0, left-max(0, wall.Sub(time.UnixMilli(h.due))))
}

// failure is one failed attempt.
type failure struct {
	attempt int
	at      int64
	err     string
}

// fail adds a failed attempt.
func (h *history) fail(attempt int, at time.Time, err error) {
	text := clean(err.Error(), errorMax)
	h.attempts, h.failed, h.err = attempt, at.UnixMilli(), text
	line := clean(strings.ReplaceAll(text, "\n", " "), historyErrorMax)
	h.past = append(slices.Clone(h.past), failure{attempt, h.failed, line})
	if n := len(h.past); n > historyMax {
		h.past = h.past[n-historyMax:]
	}
}

// clean makes text fit for a header: valid UTF-8 without control characters
// but line breaks, and short.
func clean(s string, limit int) string {
	if len(s) > 2*limit {
		s = s[:2*limit] // the rest need not be looked at
	}
	s = strings.ToValidUTF8(s, "\uFFFD")
	s = strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || r >= ' ' && r != 0x7f {
			return r
		}
		return ' '
	}, s)
	if len(s) <= limit {
		return s
	}
	s = s[:limit-len("…")]
	for len(s) > 0 && !utf8.ValidString(s) {
		s = s[:len(s)-1]
	}
	return s + "…"
}

// own returns the headers that are the message's, without Pawl's.
func own(hs []topic.Header) []topic.Header {
	i := slices.IndexFunc(hs, isPawls)
	if i < 0 {
		return hs
	}
	return slices.DeleteFunc(slices.Clone(hs), isPawls)
}

func isPawls(h topic.Header) bool { return strings.HasPrefix(h.Key, headerPrefix) }

// headers returns the message's headers and after them Pawl's.
func (h *history) headers(hs []topic.Header) []topic.Header {
	out := slices.Clone(own(hs))
	add := func(key, value string) { out = append(out, topic.Header{Key: key, Value: []byte(value)}) }
	number := func(key string, n int64) { add(key, strconv.FormatInt(n, 10)) }
	add(headerTopic, h.topic)
	add(headerTopicID, h.topicID.String())
	number(headerPartition, int64(h.partition))
	number(headerOffset, h.offset)
	number(headerTimestamp, h.timestamp)
	add(headerGroup, h.group)
	number(headerAttempts, int64(h.attempts))
	if h.hop > 0 {
		number(headerHop, int64(h.hop))
	}
	if h.due > 0 {
		number(headerDue, h.due)
	}
	if h.delay > 0 {
		number(headerDelay, h.delay)
	}
	if h.left > 0 {
		number(headerLeft, h.left)
	}
	if h.reason != "" {
		add(headerReason, h.reason)
	}
	if h.failed > 0 {
		number(headerFailed, h.failed)
		add(headerError, h.err)
	}
	if len(h.past) > 0 {
		var b strings.Builder
		for i, f := range h.past {
			if i > 0 {
				b.WriteByte('\n')
			}
			fmt.Fprintf(&b, "%d %d %s", f.attempt, f.at, f.err)
		}
		add(headerHistory, b.String())
	}
	if h.redrives > 0 {
		number(headerRedrives, int64(h.redrives))
	}
	return out
}

// parseHistory reads Pawl's headers. ok is false for a message that does not
// say where it comes from. What is malformed is passed over.
func parseHistory(hs []topic.Header) (h history, ok bool) {
	var hasTopic, hasPartition, hasOffset bool
	for _, hd := range hs {
		if !isPawls(hd) {
			continue
		}
		text := string(hd.Value)
		n, err := strconv.ParseInt(text, 10, 64)
		number := err == nil && n >= 0
		switch hd.Key {
		case headerTopic:
			h.topic, hasTopic = text, topic.CheckName(text) == nil
		case headerTopicID:
			if h.topicID.UnmarshalText(hd.Value) != nil {
				h.topicID = topic.ID{}
			}
		case headerPartition:
			if number && n <= 1<<31-1 {
				h.partition, hasPartition = int32(n), true
			}
		case headerOffset:
			if number && n <= offsetMax {
				h.offset, hasOffset = n, true
			}
		case headerTimestamp:
			if err == nil {
				h.timestamp = n
			}
		case headerGroup:
			h.group = clean(text, topic.NameMax)
		case headerAttempts:
			if number {
				h.attempts = int(min(n, countMax))
			}
		case headerHop:
			if number {
				h.hop = int(min(n, countMax))
			}
		case headerDue:
			if number {
				h.due = n
			}
		case headerDelay:
			if number {
				h.delay = n
			}
		case headerLeft:
			if number {
				h.left = n
			}
		case headerReason:
			h.reason = clean(text, historyErrorMax)
		case headerError:
			h.err = clean(text, errorMax)
		case headerFailed:
			if number {
				h.failed = n
			}
		case headerHistory:
			h.past = parsePast(text)
		case headerRedrives:
			if number {
				h.redrives = int(min(n, countMax))
			}
		}
	}
	return h, hasTopic && hasPartition && hasOffset
}

// countMax bounds counts that come from the wire.
const countMax = 1 << 30

func parsePast(text string) (past []failure) {
	for line := range strings.SplitSeq(text, "\n") {
		attempt, rest, _ := strings.Cut(line, " ")
		at, msg, ok := strings.Cut(rest, " ")
		n, err := strconv.Atoi(attempt)
		ms, err2 := strconv.ParseInt(at, 10, 64)
		if !ok || err != nil || err2 != nil || n < 0 || n > countMax || ms < 0 {
			continue
		}
		past = append(past, failure{n, ms, clean(msg, historyErrorMax)})
	}
	if n := len(past); n > historyMax {
		past = past[n-historyMax:]
	}
	return past
}

// redrivesOf returns how often a message came back from the dead letters, as
// its headers have it.
func redrivesOf(hs []topic.Header) int {
	if !slices.ContainsFunc(hs, isPawls) {
		return 0
	}
	h, _ := parseHistory(hs)
	return h.redrives
}
