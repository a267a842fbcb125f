package messaging

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"

	"github.com/pawlstream/pawl/topic"
)

// A snapshot is what a commit says beside its offset, in the commit's metadata:
// which offsets above the committed one are settled, and what is known of
// crashes. Its form, which is frozen, is text:
//
//	"pawl2." base64url( crc32c, 4 bytes | the topic's ID, 16 bytes | body )
//
// The ID tells whether the offset is one of this topic: one that was deleted
// and made anew under its name has another, and the group's offset is not its.
// It is there also where there is nothing else to say. The checksum covers the
// ID, the partition, the committed offset and the body, so that a snapshot
// can't be taken for that of another offset, such as one that a tool has set.
// Before there was
//
//	"pawl1." base64url( crc32c, 4 bytes | body )
//
// whose checksum covers the same: the ID is not said, and must be the topic's.
// The body is a row of unsigned varints,
//
//	form | rounds | suspect | crashes | read
//
// and then the settled offsets in the shorter one of two forms. All of it is
// relative to the committed offset, which is itself not settled.
//
//	form 0: none.
//	form 1: a bitmap. Bit i, from the lowest of the first byte, is set if the
//	        offset i+1 above the committed one is settled.
//	form 2: run lengths, as varints: so many offsets are not settled, so many
//	        are, so many are not …
//
// rounds is how many owners in a row have lost the partition by a crash, or
// have it, soon after they were given it. suspect is 1 more than how far above
// the committed offset the message is that is being handled alone, 0 for none,
// and crashes how often the process has ended meanwhile. read is how far above
// the committed offset messages were read: what is below and not settled may
// have been given to a handler before.
type snapshot struct {
	settled []span // in order, apart from each other, all above the committed offset

	rounds  uint64
	suspect int64 // an offset; -1: none
	crashes uint64
	read    int64 // the offset after the last message that was read
}

// span is the offsets from from on, below to.
type span struct{ from, to int64 }

const (
	snapshotPrefix  = "pawl2."
	snapshotBefore  = "pawl1."
	snapshotFamily  = "pawl" // that snapshots of every version begin with
	snapshotMax     = 4096   // characters: what brokers take (offset.metadata.max.bytes)
	snapshotHead    = 4 + 16 // the checksum and the ID
	snapshotMaxBody = (snapshotMax-len(snapshotPrefix))*3/4 - snapshotHead
)

const (
	formNone   = 0
	formBitmap = 1
	formRuns   = 2
)

// place is where a snapshot belongs.
type place struct {
	id        topic.ID
	partition int32
	offset    int64 // the committed one
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (p place) checksum(body []byte) uint32 {
	var b [16 + 4 + 8]byte
	copy(b[:], p.id[:])
	binary.BigEndian.PutUint32(b[16:], uint32(p.partition))
	binary.BigEndian.PutUint64(b[20:], uint64(p.offset))
	return crc32.Update(crc32.Checksum(b[:], castagnoli), castagnoli, body)
}

// encode returns the text of a snapshot, and the offset below which it says
// everything. Where not all of it fits, that of the lowest offsets does.
func (s *snapshot) encode(at place) (text string, covered int64) {
	suspect := uint64(0)
	if s.suspect >= at.offset {
		suspect = uint64(s.suspect-at.offset) + 1
	}
	head := func(form uint64) []byte {
		b := binary.AppendUvarint(make([]byte, snapshotHead, 64), form)
		b = binary.AppendUvarint(b, s.rounds)
		b = binary.AppendUvarint(b, suspect)
		b = binary.AppendUvarint(b, s.crashes)
		return binary.AppendUvarint(b, uint64(max(0, s.read-at.offset)))
	}
	if len(s.settled) == 0 {
		if at.id == (topic.ID{}) && s.rounds == 0 && suspect == 0 && s.crashes == 0 && s.read <= at.offset {
			return "", at.offset
		}
		return seal(head(formNone), at), at.offset
	}
	room := snapshotMaxBody + snapshotHead - len(head(formRuns))
	end := s.settled[len(s.settled)-1].to

	runs, runsEnd := make([]byte, 0, min(room, 16*len(s.settled))), at.offset
	var buf [2 * binary.MaxVarintLen64]byte
	for _, sp := range s.settled {
		n := binary.PutUvarint(buf[:], uint64(sp.from-runsEnd))
		n += binary.PutUvarint(buf[n:], uint64(sp.to-sp.from))
		if len(runs)+n > room {
			break
		}
		runs = append(runs, buf[:n]...)
		runsEnd = sp.to
	}
	bits := end - at.offset - 1 // how many a bitmap needs
	bitsEnd := end
	if bits > int64(room)*8 {
		bits, bitsEnd = int64(room)*8, at.offset+1+int64(room)*8
	}
	size := int((bits + 7) / 8)
	if runsEnd > bitsEnd || runsEnd == bitsEnd && len(runs) <= size {
		return seal(append(head(formRuns), runs...), at), runsEnd
	}
	b := head(formBitmap)
	n := len(b)
	b = append(b, make([]byte, size)...)
	for _, sp := range s.settled {
		for o := sp.from; o < min(sp.to, bitsEnd); o++ {
			i := o - at.offset - 1
			b[n+int(i/8)] |= 1 << (i % 8)
		}
	}
	return seal(b, at), bitsEnd
}

// seal adds the checksum and the ID, for which b has room at its start.
func seal(b []byte, at place) string {
	copy(b[4:], at.id[:])
	binary.BigEndian.PutUint32(b, at.checksum(b[snapshotHead:]))
	return snapshotPrefix + base64.RawURLEncoding.EncodeToString(b)
}

var (
	errForeign  = errors.New("the commit's metadata is not Pawl's")
	errVersion  = errors.New("the commit's metadata is of another version")
	errChecksum = errors.New("the commit's metadata is damaged, or belongs to another offset")
	errAnother  = errors.New("the commit is of a topic that was deleted, and made anew under its name")
)

// decodeSnapshot reads what encode returned. Metadata that it can't read is an
// error, and says nothing. With errAnother the committed offset says nothing
// either. Brokers that know no IDs have all zeros, which are compared to none.
func decodeSnapshot(text string, at place) (snapshot, error) {
	s := snapshot{suspect: -1}
	switch {
	case text == "":
		return s, nil
	case !strings.HasPrefix(text, snapshotPrefix) && !strings.HasPrefix(text, snapshotBefore):
		if strings.HasPrefix(text, snapshotFamily) {
			return s, errVersion
		}
		return s, errForeign
	case len(text) > snapshotMax:
		return s, errChecksum
	}
	head := snapshotHead
	if strings.HasPrefix(text, snapshotBefore) {
		head = 4
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(text[len(snapshotPrefix):])
	if err != nil || len(b) < head {
		return s, errChecksum
	}
	written := at
	if head == snapshotHead {
		written.id = topic.ID(b[4:snapshotHead])
	}
	if binary.BigEndian.Uint32(b) != written.checksum(b[head:]) {
		return s, errChecksum
	}
	if none := (topic.ID{}); written.id != at.id && written.id != none && at.id != none {
		return s, errAnother
	}
	if err := s.parse(b[head:], at.offset); err != nil {
		return snapshot{suspect: -1}, fmt.Errorf("%w: %w", errChecksum, err)
	}
	return s, nil
}

var errMalformed = errors.New("malformed")

// offsetMax bounds what a snapshot can name, far below where sums overflow.
const offsetMax = 1 << 61

func (s *snapshot) parse(b []byte, base int64) error {
	bad := false
	next := func() uint64 {
		v, n := binary.Uvarint(b)
		if n <= 0 || v > offsetMax {
			bad = true
			return 0
		}
		b = b[n:]
		return v
	}
	form := next()
	s.rounds = next()
	if suspect := next(); suspect > 0 {
		s.suspect = base + int64(suspect) - 1
	}
	s.crashes = next()
	s.read = base + int64(next())
	if bad || base < 0 || base > offsetMax {
		return errMalformed
	}
	switch form {
	case formNone:
		if len(b) > 0 {
			return errMalformed
		}
	case formBitmap:
		open := false
		for i := range int64(len(b)) * 8 {
			set := b[i/8]&(1<<(i%8)) != 0
			switch o := base + 1 + i; {
			case set && !open:
				s.settled = append(s.settled, span{o, o + 1})
			case set:
				s.settled[len(s.settled)-1].to = o + 1
			}
			open = set
		}
	case formRuns:
		at := uint64(base)
		for len(b) > 0 {
			gap, length := next(), next()
			if bad || gap == 0 || length == 0 || at+gap+length > offsetMax {
				return errMalformed
			}
			s.settled = append(s.settled, span{int64(at + gap), int64(at + gap + length)})
			at += gap + length
		}
	default:
		return errMalformed
	}
	return nil
}

// settled returns the settled offsets above the oldest unsettled item of a
// window. Offsets that were never there count with the item before them.
func (w *window) settledSpans() []span {
	var spans []span
	open := false
	for i := range w.n {
		it := w.at(i)
		if it.settled && !open {
			spans = append(spans, span{from: it.id})
		}
		if !it.settled && open {
			spans[len(spans)-1].to = it.id
		}
		open = it.settled
	}
	if open {
		spans[len(spans)-1].to = w.read + 1
	}
	return spans
}

// settledFrom returns how many items at or above an offset are settled.
func (w *window) settledFrom(offset int64) (n int) {
	for i := w.n - 1; i >= 0 && w.at(i).id >= offset; i-- {
		if w.at(i).settled {
			n++
		}
	}
	return n
}
