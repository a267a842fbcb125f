package consumer

import (
	"fmt"
	"strings"
	"time"

	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// The headers of a dead letter, which come after those of the message.
const (
	HeaderTopic     = "pawl-topic"     // where the message was: the topic,
	HeaderPartition = "pawl-partition" // the partition,
	HeaderOffset    = "pawl-offset"    // and the offset, in decimal
	HeaderTimestamp = "pawl-timestamp" // its timestamp, in milliseconds since 1970
	HeaderReason    = "pawl-reason"    // error, decode or panic
	HeaderError     = "pawl-error"     // the error's text, at most 4 KiB of it
	HeaderFailedAt  = "pawl-failed-at" // when it failed, as RFC 3339 writes it
	HeaderTimer     = "pawl-timer"     // of the dead letter of a timer: when it was due, as RFC 3339 writes it
	HeaderOmitted   = "pawl-omitted"   // what of the message is not in the letter, which would be too large for its topic: "headers" or "headers, key, value"
)

const (
	errorMax   = 4 << 10 // how much of an error's text a dead letter carries
	errorShort = 200     // and one that has little room
	letterRoom = 64 << 10
)

// deadLetters returns the dead letter of a message, and what is written in its
// place if that is too large: first without the message's headers and most of
// the error's text, then without the message, which is where the letter says.
//
// A message that was just small enough for its own topic may be too large with
// what a letter adds. Dead-letter topics are created with room for it, but may
// have been created by others, or their settings changed, or the input's; and
// no message stops its shard for ever under a policy that is to get past it.
func deadLetters(s *shard, e topic.Envelope, err error) []kafka.Record {
	letter := func(key, value []byte, headers []topic.Header, textMax int, omitted string) kafka.Record {
		header := func(name, value string) {
			headers = append(headers, topic.Header{Key: name, Value: []byte(value)})
		}
		header(HeaderTopic, e.TopicName())
		header(HeaderPartition, fmt.Sprint(e.Partition))
		header(HeaderOffset, fmt.Sprint(e.Offset))
		header(HeaderTimestamp, fmt.Sprint(e.Timestamp.UnixMilli()))
		header(HeaderReason, reason(err))
		header(HeaderError, shortened(err.Error(), textMax))
		header(HeaderFailedAt, time.Now().UTC().Format(time.RFC3339Nano))
		if omitted != "" {
			header(HeaderOmitted, omitted)
		}
		return kafka.Record{
			Topic: DeadLetterTopic(s.app.cfg.Application, s.set.name), Partition: e.Partition,
			Key: key, Value: value, Headers: headers,
		}
	}
	return []kafka.Record{
		letter(e.Key, e.Value, append([]topic.Header(nil), e.Headers...), errorMax, ""),
		letter(e.Key, e.Value, nil, errorShort, "headers"),
		letter(nil, []byte{}, nil, errorShort, "headers, key, value"),
	}
}

// shortened returns at most max bytes of a text, as valid UTF-8, and says so if
// it has more.
func shortened(text string, max int) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) > max {
		text = strings.ToValidUTF8(text[:max], "") + "…"
	}
	return text
}
