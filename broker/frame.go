package broker

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// The size of requests. A produce may be as big as clients make them by
// default, 100 MiB, and then some: one that is refused comes again and again.
// What the others hold is lists, which take many times more memory than bytes.
const (
	frameMax    = 128 << 20
	requestMax  = 4 << 20
	frameHeader = 8 // API key, version and correlation ID
)

// How much memory a request may take while it is decoded, and once it is, in
// bytes per byte on the wire.
const (
	decodingWeight = 160
	decodedWeight  = 8
)

// entriesMax is how many partitions a produce may name.
const entriesMax = 100_000

// frameTime is how long the rest of a request may take once it has begun, and
// frameRate how many bytes a second it may take at the least.
const (
	frameTime = 30 * time.Second
	frameRate = 256 << 10
)

var errFrame = errors.New("that is not a request")

// A frame is one request as it came. Its weight is taken from a budget.
type frame struct {
	key, version int16
	correlation  int32
	clientID     string
	req          kmsg.Request
	weight       int64
	from         *budget
	unsupported  bool // it asks for versions in a version that is not known
}

// readFrame reads a request. Its size is looked at before anything is made for
// it, and what is made grows with what comes.
func (c *connection) readFrame(ctx context.Context) (f *frame, err error) {
	var head [4 + frameHeader]byte
	if err := c.setReadTime(c.idleTime()); err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(c.in, head[:4]); err != nil {
		return nil, err
	}
	size := int64(int32(binary.BigEndian.Uint32(head[:])))
	if size < frameHeader || size > frameMax {
		return nil, fmt.Errorf("%w: it begins with %q", errFrame, head[:4])
	}
	if err := c.setReadTime(frameTime + time.Duration(size/frameRate)*time.Second); err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(c.in, head[4:]); err != nil {
		return nil, err
	}
	f = &frame{
		key:         int16(binary.BigEndian.Uint16(head[4:])),
		version:     int16(binary.BigEndian.Uint16(head[6:])),
		correlation: int32(binary.BigEndian.Uint32(head[8:])),
		from:        c.requests,
	}
	a, ok := apis[f.key]
	switch {
	case !ok:
		return nil, fmt.Errorf("%w: API key %d is not known", errFrame, f.key)
	case f.key == int16(kmsg.ApiVersions) && (f.version < a.min || f.version > a.max):
		f.unsupported = true
	case f.version < a.min || f.version > a.max:
		return nil, fmt.Errorf("%w: %s has no version %d here", errFrame, kmsg.NameForKey(f.key), f.version)
	case !a.before && !c.authenticated():
		return nil, fmt.Errorf("%w: %s before authentication", errFrame, kmsg.NameForKey(f.key))
	case f.key != int16(kmsg.Produce) && size > requestMax, a.before && size > 64<<10:
		return nil, fmt.Errorf("%w: %s of %d bytes", errFrame, kmsg.NameForKey(f.key), size)
	}
	defer func() {
		if err != nil {
			f.from.give(f.weight)
		}
	}()
	body, err := c.readBody(ctx, f, size-frameHeader)
	if err != nil || f.unsupported {
		return f, err
	}
	return f, f.decode(body)
}

// The pieces in which a request is read: what is taken from the budget and made
// for it grows with what has come, so that who sends little holds little.
const (
	pieceMin = 64 << 10
	pieceMax = 1 << 20
)

// wholeMax is how big a request from within the process is that is read at
// once, if there is memory for it.
const wholeMax = 8 << 20

// smallMax is how big a request may be that waits in the connection's own buffer
// until all of it has come, and has a budget apart: those who send a part of
// something big, and take their time, hold up nobody who asks for little.
const smallMax = 8 << 10

// readBody reads the rest of a request, a piece at a time, each taken from the
// budget before.
func (c *connection) readBody(ctx context.Context, f *frame, size int64) ([]byte, error) {
	each := int64(1)
	if f.key != int16(kmsg.Produce) {
		each = decodingWeight
	}
	if size <= smallMax && !c.inside {
		if _, err := c.in.Peek(int(size)); err != nil {
			return nil, err
		}
		f.from = c.b.smallRequests
	}
	if n := size * each; c.inside && size <= wholeMax && n <= c.requests.total && c.requests.try(n) {
		f.weight += n
		body := make([]byte, size)
		_, err := io.ReadFull(c.in, body)
		return body, err
	}
	body := make([]byte, 0, min(size, pieceMin))
	for size > 0 {
		n := min(size, max(pieceMin, min(int64(len(body)), pieceMax)))
		if err := c.takeRequest(ctx, f, n*each); err != nil {
			return nil, err
		}
		at := len(body)
		body = slices.Grow(body, int(n))[:at+int(n)]
		if _, err := io.ReadFull(c.in, body[at:]); err != nil {
			return nil, err
		}
		size -= n
	}
	return body, nil
}

// takeRequest takes from the budget, in time.
func (c *connection) takeRequest(ctx context.Context, f *frame, n int64) error {
	n = min(n, f.from.total-f.weight)
	if n <= 0 {
		return nil
	}
	if !f.from.try(n) {
		ctx, cancel := context.WithTimeout(ctx, frameTime)
		defer cancel()
		if err := f.from.take(ctx, n); err != nil {
			return fmt.Errorf("wait for memory: %w", err)
		}
	}
	f.weight += n
	return nil
}

// decode reads the request that a frame holds.
func (f *frame) decode(body []byte) error {
	r := kbin.Reader{Src: body}
	if id := r.NullableString(); id != nil {
		f.clientID = *id
	}
	f.req = kmsg.RequestForKey(f.key)
	f.req.SetVersion(f.version)
	if f.req.IsFlexible() {
		kmsg.SkipTags(&r)
	}
	if err := r.Complete(); !r.Ok() && err != nil {
		return fmt.Errorf("%w: its header: %w", errFrame, err)
	}
	if f.key == int16(kmsg.Produce) {
		if err := checkProduce(r.Src, f.version); err != nil {
			return fmt.Errorf("%w: Produce: %w", errFrame, err)
		}
	}
	if err := f.req.ReadFrom(r.Src); err != nil {
		return fmt.Errorf("%w: %s: %w", errFrame, kmsg.NameForKey(f.key), err)
	}
	return nil
}

// decoded gives back what decoding might have taken.
func (f *frame) decoded() {
	if f.key == int16(kmsg.Produce) {
		return
	}
	keep := f.weight / decodingWeight * decodedWeight
	f.from.give(f.weight - keep)
	f.weight = keep
}

// checkProduce walks over a produce request without making anything for it: its
// size says little about the lists in it, for which the decoder makes room
// before it has seen them.
func checkProduce(body []byte, version int16) error {
	r := kbin.Reader{Src: body}
	flexible := version >= 9
	skipTags := func() {
		if flexible {
			kmsg.SkipTags(&r)
		}
	}
	array := func() int32 {
		if flexible {
			return r.CompactArrayLen()
		}
		return r.ArrayLen()
	}
	if flexible {
		r.CompactNullableString()
	} else {
		r.NullableString()
	}
	r.Int16()
	r.Int32()
	left := int32(entriesMax)
	for range array() {
		switch {
		case version >= 13:
			r.Uuid()
		case flexible:
			r.Span(int(r.Uvarint()) - 1)
		default:
			r.Span(int(r.Int16()))
		}
		n := array()
		if left -= 1 + n; n < 0 || left < 0 {
			return fmt.Errorf("it names more than %d partitions", entriesMax)
		}
		for range n {
			r.Int32()
			if flexible {
				r.CompactNullableBytes()
			} else {
				r.NullableBytes()
			}
			skipTags()
			if !r.Ok() {
				return r.Complete()
			}
		}
		skipTags()
		if !r.Ok() {
			return r.Complete()
		}
	}
	skipTags()
	if !r.Ok() {
		return r.Complete()
	}
	return nil
}
