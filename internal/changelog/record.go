package changelog

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/pawlstream/pawl/topic"
)

// Format is the format that this version writes records and positions in, and
// the newest that it reads.
const Format = 1

// control is the first byte of the keys of records that are not changes of
// state. It is the byte that the store keeps for itself, and so never logs.
const control = 0x00

// The keys of the records that are not changes of state.
var (
	StartKey   = []byte("\x00start")
	OffsetsKey = []byte("\x00offsets")
)

// foreign is the first byte from which on keys are never Pawl's.
const foreign = 0x20

// IsChange says whether a record with the given key is a change of state. Of
// some of those the store may say that they are of a newer version.
func IsChange(key []byte) bool { return len(key) > 0 && key[0] != control && key[0] < foreign }

// IsForeign says whether a record with the given key is nothing that any
// version of Pawl writes: somebody else has written to the topic.
func IsForeign(key []byte) bool { return len(key) == 0 || key[0] >= foreign }

// Offset says up to where one partition of one topic, identified by more than
// its name, is consumed.
type Offset struct {
	Topic     string   `json:"topic"`
	ID        topic.ID `json:"id"`
	Partition int32    `json:"partition"`
	Next      int64    `json:"next"` // the offset of the first message not consumed
}

// Offsets is what an offsets record holds.
type Offsets struct {
	Inputs []Offset
	// Partitions is the number of partitions that the input had when the
	// shard's first offset was resolved. A partition with a higher number is
	// known by it to have appeared later.
	Partitions int
}

// AppendOffsets appends the value of an offsets record to dst.
func AppendOffsets(dst []byte, o Offsets) []byte {
	dst = append(dst, `{"v":1,"offsets":[`...)
	dst = appendInputs(dst, o.Inputs)
	dst = append(dst, `],"partitions":`...)
	dst = strconv.AppendInt(dst, int64(o.Partitions), 10)
	return append(dst, '}')
}

func appendInputs(dst []byte, inputs []Offset) []byte {
	for i, in := range inputs {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"topic":"`...)
		dst = append(dst, in.Topic...) // a topic's name needs no escaping
		dst = append(dst, `","id":"`...)
		dst = append(dst, in.ID.String()...)
		dst = append(dst, `","partition":`...)
		dst = strconv.AppendInt(dst, int64(in.Partition), 10)
		dst = append(dst, `,"next":`...)
		dst = strconv.AppendInt(dst, in.Next, 10)
		dst = append(dst, '}')
	}
	return dst
}

// ParseOffsets decodes the value of an offsets record.
func ParseOffsets(val []byte) (Offsets, error) {
	var rec struct {
		V          int      `json:"v"`
		Offsets    []Offset `json:"offsets"`
		Partitions int      `json:"partitions"`
	}
	if err := parse("offsets record", val, &rec, &rec.V); err != nil {
		return Offsets{}, err
	}
	if err := checkInputs(rec.Offsets); err != nil {
		return Offsets{}, fmt.Errorf("offsets record: %w", err)
	}
	return Offsets{Inputs: rec.Offsets, Partitions: rec.Partitions}, nil
}

// checkInputs refuses what no version has written.
func checkInputs(inputs []Offset) error {
	for i, in := range inputs {
		if err := topic.CheckName(in.Topic); err != nil {
			return err
		}
		if in.Partition < 0 || in.Next < 0 {
			return fmt.Errorf("%s-%d at %d: negative", in.Topic, in.Partition, in.Next)
		}
		if slices.ContainsFunc(inputs[:i], func(o Offset) bool { return o.Topic == in.Topic && o.Partition == in.Partition }) {
			return fmt.Errorf("%s-%d is named twice", in.Topic, in.Partition)
		}
	}
	return nil
}

// Start is what a start record holds: who owns the shard from here on.
type Start struct {
	V        int       `json:"v"`
	Instance string    `json:"instance"` // the group instance ID of the process
	Producer int64     `json:"producer"` // the producer ID
	Epoch    int16     `json:"epoch"`    // and its epoch
	Version  string    `json:"version"`  // the version of Pawl
	At       time.Time `json:"at"`
}

// Marshal returns the value of a start record.
func (s Start) Marshal() ([]byte, error) {
	s.V = Format
	return json.Marshal(s)
}

// ParseStart decodes the value of a start record.
func ParseStart(val []byte) (Start, error) {
	var s Start
	err := parse("start record", val, &s, &s.V)
	return s, err
}

// parse decodes JSON into rec, and refuses a format that is not ours, before
// anything else is said about the value.
func parse(what string, val []byte, rec any, v *int) error {
	var format struct {
		V int `json:"v"`
	}
	if err := json.Unmarshal(val, &format); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if format.V != Format {
		return &FormatError{What: what, Found: format.V}
	}
	if err := json.Unmarshal(val, rec); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	*v = format.V
	return nil
}

// FormatError says that something was written in a format that this version
// does not read.
type FormatError struct {
	What  string
	Found int
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("%s has format %d, and this version reads format %d: run a version that reads it", e.What, e.Found, Format)
}
