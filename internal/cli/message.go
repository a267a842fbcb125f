package cli

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"time"
	"unicode/utf8"

	"github.com/pawlstream/pawl/internal/config"
	"github.com/pawlstream/pawl/topic"
)

// message is the form of a message that consume prints and produce reads: what
// one prints, the other writes again, byte for byte. Keys, values and header
// values are text, or null; where they are not UTF-8 they are in base64, and
// the encoding beside them says so.
type message struct {
	Topic         string          `json:"topic,omitempty"`
	Partition     *int32          `json:"partition,omitempty"`
	Offset        *int64          `json:"offset,omitempty"`
	TimestampMs   *int64          `json:"timestamp_ms,omitempty"`
	Time          string          `json:"time,omitempty"` // for people; what counts is timestamp_ms
	Key           *string         `json:"key"`
	KeyEncoding   string          `json:"key_encoding,omitempty"`
	Headers       []messageHeader `json:"headers,omitempty"`
	Value         *string         `json:"value"`
	ValueEncoding string          `json:"value_encoding,omitempty"`
}

type messageHeader struct {
	Name          string  `json:"name"`
	NameEncoding  string  `json:"name_encoding,omitempty"`
	Value         *string `json:"value"`
	ValueEncoding string  `json:"value_encoding,omitempty"`
}

// The encodings.
const (
	inUTF8   = "utf-8" // the default
	inBase64 = "base64"
)

// newMessage returns the form of a message.
func newMessage(e topic.Envelope) message {
	ms := e.Timestamp.UnixMilli()
	m := message{Topic: e.TopicName(), Partition: &e.Partition, Offset: &e.Offset, TimestampMs: &ms}
	if y := e.Timestamp.UTC().Year(); ms >= 0 && y <= 9999 {
		m.Time = e.Timestamp.UTC().Format(timeForm)
	}
	m.Key, m.KeyEncoding = encodeText(e.Key)
	m.Value, m.ValueEncoding = encodeText(e.Value)
	for _, h := range e.Headers {
		var mh messageHeader
		name, encoding := encodeText([]byte(h.Key))
		if name != nil {
			mh.Name, mh.NameEncoding = *name, encoding
		}
		mh.Value, mh.ValueEncoding = encodeText(h.Value)
		m.Headers = append(m.Headers, mh)
	}
	return m
}

// timeForm is how a message's time is shown.
const timeForm = "2006-01-02T15:04:05.000Z07:00"

func encodeText(b []byte) (text *string, encoding string) {
	if b == nil {
		return nil, ""
	}
	s := string(b)
	if !utf8.ValidString(s) {
		s, encoding = base64.StdEncoding.EncodeToString(b), inBase64
	}
	return &s, encoding
}

func decodeText(text *string, encoding string) ([]byte, error) {
	if text == nil {
		if encoding != "" {
			return nil, fmt.Errorf("null has no encoding, and %q is given", encoding)
		}
		return nil, nil
	}
	switch encoding {
	case "", inUTF8:
		return []byte(*text), nil
	case inBase64:
		b, err := base64.StdEncoding.DecodeString(*text)
		if err != nil {
			return nil, fmt.Errorf("not base64: %w", err)
		}
		return b, nil
	}
	return nil, fmt.Errorf("encoding %q: want %s or %s", encoding, inUTF8, inBase64)
}

// The members of a message. Time and offset say what was; produce passes them
// over.
var (
	messageMembers = []string{"topic", "partition", "offset", "timestamp_ms", "time", "key", "key_encoding", "headers", "value", "value_encoding"}
	headerMembers  = []string{"name", "name_encoding", "value", "value_encoding"}
)

// errNoValue says why a message is refused that says nothing of its value: a
// misspelt member must not become a null value, which deletes.
var errNoValue = errors.New(`it has no "value": say null for a null value, which deletes where a topic is compacted`)

// parseMessage reads the form of a message. What it does not know it refuses.
func parseMessage(line []byte) (message, error) {
	var m message
	found, err := checkMembers(line, messageMembers)
	if err != nil {
		return m, err
	}
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.DisallowUnknownFields() // those of headers
	if err := dec.Decode(&m); err != nil {
		return m, wrongJSON(err)
	}
	if !found["value"] {
		return m, errNoValue
	}
	return m, nil
}

// checkMembers reads the names of an object's members, which must be known and
// there once, and makes sure that nothing follows the object. JSON itself
// would take any case of a name, and the last of two.
func checkMembers(text []byte, members []string) (found map[string]bool, err error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	token, err := dec.Token()
	if err != nil {
		return nil, wrongJSON(err)
	}
	if token != json.Delim('{') {
		return nil, errors.New("it is not a JSON object")
	}
	found = make(map[string]bool)
	for dec.More() {
		token, err := dec.Token()
		if err != nil {
			return nil, wrongJSON(err)
		}
		name, ok := token.(string)
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return nil, wrongJSON(err)
		}
		known := false
		for _, m := range members {
			known = known || m == name
		}
		switch {
		case !ok || !known:
			return nil, fmt.Errorf("unknown member %.60q%s", name, config.Suggest(name, members))
		case found[name]:
			return nil, fmt.Errorf("member %q is there twice", name)
		}
		found[name] = true
		if name == "headers" && string(raw) != "null" {
			var headers []json.RawMessage
			if err := json.Unmarshal(raw, &headers); err != nil {
				return nil, errors.New("headers are not a list")
			}
			for _, h := range headers {
				if _, err := checkMembers(h, headerMembers); err != nil {
					return nil, fmt.Errorf("header: %w", err)
				}
			}
		}
	}
	if _, err := dec.Token(); err != nil {
		return nil, wrongJSON(err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the JSON object")
	}
	return found, nil
}

func wrongJSON(err error) error {
	var kind *json.UnmarshalTypeError
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("it is cut short")
	case errors.As(err, &kind):
		return fmt.Errorf("%s is a JSON %s: want %s", kind.Field, kind.Value, wanted[kind.Type.String()])
	}
	return err
}

// wanted says in words what a member is.
var wanted = map[string]string{"string": "a string (a JSON document goes into one, quoted)", "int32": "a number", "int64": "a number", "[]cli.messageHeader": "a list", "cli.messageHeader": "an object"}

// The times that can be written: the client library counts in nanoseconds.
const (
	timestampMin = math.MinInt64 / 1_000_000
	timestampMax = math.MaxInt64 / 1_000_000
)

// envelope returns the message that m is the form of.
func (m message) envelope() (e topic.Envelope, err error) {
	if e.Key, err = decodeText(m.Key, m.KeyEncoding); err != nil {
		return e, fmt.Errorf("key: %w", err)
	}
	if e.Value, err = decodeText(m.Value, m.ValueEncoding); err != nil {
		return e, fmt.Errorf("value: %w", err)
	}
	for i, h := range m.Headers {
		name, err := decodeText(&h.Name, h.NameEncoding)
		if err != nil {
			return e, fmt.Errorf("name of header %d: %w", i, err)
		}
		value, err := decodeText(h.Value, h.ValueEncoding)
		if err != nil {
			return e, fmt.Errorf("header %q: %w", h.Name, err)
		}
		e.Headers = append(e.Headers, topic.Header{Key: string(name), Value: value})
	}
	if m.TimestampMs != nil {
		if *m.TimestampMs < timestampMin || *m.TimestampMs > timestampMax {
			return e, fmt.Errorf("timestamp_ms %d is beyond the years 1678 to 2262, which can be written; is it in milliseconds?", *m.TimestampMs)
		}
		e.Timestamp = time.UnixMilli(*m.TimestampMs)
	}
	e.Partition = -1
	if m.Partition != nil {
		if e.Partition = *m.Partition; e.Partition < 0 {
			return e, fmt.Errorf("partition %d: want 0 or more", e.Partition)
		}
	}
	return e, nil
}
