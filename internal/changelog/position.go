package changelog

import (
	"fmt"
	"strconv"
	"time"

	"github.com/pawlstream/pawl/topic"
)

// Position says how far a copy of a shard's state has come. It is stored with
// the copy, in the same batch as what it describes.
type Position struct {
	Changelog topic.ID // the identity of the changelog topic
	Next      int64    // the offset of the first changelog record not applied
	Offsets   Offsets  // as the last offsets record before Next says

	// AtEnd is the last time at which Next was known to be the end of the
	// changelog, or zero. A copy that has not stood at the end for longer
	// than tombstones are kept may have missed some.
	AtEnd time.Time
}

// AppendPosition appends the stored form of p to dst: a JSON object.
func AppendPosition(dst []byte, p Position) []byte {
	dst = append(dst, `{"v":1,"changelog":"`...)
	dst = append(dst, p.Changelog.String()...)
	dst = append(dst, `","next":`...)
	dst = strconv.AppendInt(dst, p.Next, 10)
	dst = append(dst, `,"offsets":[`...)
	dst = appendInputs(dst, p.Offsets.Inputs)
	dst = append(dst, `],"partitions":`...)
	dst = strconv.AppendInt(dst, int64(p.Offsets.Partitions), 10)
	if !p.AtEnd.IsZero() {
		dst = append(dst, `,"at_end_ms":`...)
		dst = strconv.AppendInt(dst, p.AtEnd.UnixMilli(), 10)
	}
	return append(dst, '}')
}

// ParsePosition decodes the stored form of a position.
func ParsePosition(val []byte) (Position, error) {
	var rec struct {
		V          int      `json:"v"`
		Changelog  topic.ID `json:"changelog"`
		Next       int64    `json:"next"`
		Offsets    []Offset `json:"offsets"`
		Partitions int      `json:"partitions"`
		AtEnd      int64    `json:"at_end_ms"`
	}
	if err := parse("position", val, &rec, &rec.V); err != nil {
		return Position{}, err
	}
	if rec.Next < 0 {
		return Position{}, fmt.Errorf("position: changelog offset %d is negative", rec.Next)
	}
	if err := checkInputs(rec.Offsets); err != nil {
		return Position{}, fmt.Errorf("position: %w", err)
	}
	p := Position{Changelog: rec.Changelog, Next: rec.Next, Offsets: Offsets{Inputs: rec.Offsets, Partitions: rec.Partitions}}
	if rec.AtEnd != 0 {
		p.AtEnd = time.UnixMilli(rec.AtEnd)
	}
	return p, nil
}

// A Verdict says whether a copy of the state can be resumed, and if not, why.
type Verdict string

// The verdicts. Any but Resume and Empty discards the copy.
const (
	Resume     Verdict = "resume"
	Empty      Verdict = "no copy"
	OtherTopic Verdict = "the changelog topic was created anew"
	PastEnd    Verdict = "the position is beyond the changelog's end"
	BelowStart Verdict = "the position is below the changelog's start"
	TooOld     Verdict = "the copy may have missed deletes that were compacted away"
	Unreadable Verdict = "the position can't be read"
)

// marginDivisor is the part of the tombstone retention that is kept as a
// margin, for clocks that differ and cleaners that start early.
const marginDivisor = 4

// Log is what is known of a changelog partition when a copy is judged.
type Log struct {
	ID                 topic.ID
	Start, End         int64         // End is the high watermark
	TombstoneRetention time.Duration // the topic's delete.retention.ms
}

// Judge decides whether the copy at position p can be resumed from the log.
// It is resumed if it stands at the end, or stood there so lately that no
// tombstone it has not seen can be gone yet: younger than the topic's
// tombstone retention, less a margin of a quarter. A time in the future by more
// than that margin is from a clock that was wrong, and says nothing.
//
// A position is that of the last record applied, plus one, and the marker
// that ends a transaction comes after its last record. So a copy that has
// everything stands one below the end: a single offset can't hold a committed
// record, which would have a marker of its own.
func Judge(p *Position, log Log, now time.Time) Verdict {
	switch {
	case p == nil:
		return Empty
	case p.Changelog != log.ID:
		return OtherTopic
	case p.Next > log.End:
		return PastEnd
	case p.Next >= log.End-1:
		return Resume
	case p.Next < log.Start:
		return BelowStart
	case p.AtEnd.IsZero() || now.Sub(p.AtEnd) > log.TombstoneRetention-log.TombstoneRetention/marginDivisor:
		return TooOld
	case p.AtEnd.Sub(now) > log.TombstoneRetention/marginDivisor:
		return TooOld // a clock that was that wrong says nothing
	}
	return Resume
}
