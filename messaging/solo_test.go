package messaging

import (
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// Whatever becomes of the messages of chunks that are solo, whenever they are
// dissolved, and whatever other handlers take beside them: no message is begun
// with before those of its key that came before it are settled, and all are
// settled, each once.
func TestSoloKeepsOrder(t *testing.T) {
	for _, order := range []Order{ByKey, KeyRelaxed, ByPartition, Unordered} {
		t.Run(string(order), func(t *testing.T) { rapid.Check(t, func(rt *rapid.T) { soloKeepsOrder(t, rt, order) }) })
	}
}

func soloKeepsOrder(t *testing.T, rt *rapid.T, order Order) {
	p := alone(t, order, 0)
	p.w.cfg.Retry.InPlace = 1 << 30
	p.w.breaker.cfg.Failures = -1
	p.w.pool.mean.Store(0)
	s := p.mu.streams[streamInput]
	n := rapid.IntRange(1, 300).Draw(rt, "messages")
	keys := rapid.IntRange(1, 20).Draw(rt, "keys")
	es, size := make([]topic.Envelope, n), 0
	for i := range es {
		es[i] = topic.Envelope{Offset: int64(i), Key: fmt.Append(nil, rapid.IntRange(1, keys).Draw(rt, "key"))}
		size += len(es[i].Key)
	}
	p.push(s, &kafka.FetchedPart{PartBatch: kafka.PartBatch{Count: n, Next: int64(n)}, Messages: kafka.MessagesOf(s.desc, es...), Bytes: size})
	solos, acked := 0, make(map[int64]int)
	var running []*chunk
	ended := make(map[*chunk]int64) // how many of its messages a handler has come to
	before := make(map[*chunk]bool) // whether it acked the last
	late := make(map[*chunk]bool)   // whether the pool has found that it takes long, which it does once
	var later []*delivery
	begin := func(d *delivery) {
		for at := range d.at {
			switch {
			case acked[at] > 0, order == Unordered, order != ByPartition && string(es[at].Key) != string(d.key):
			default:
				rt.Fatalf("offset %d is begun with before %d, of its key, is acked", d.at, at)
			}
		}
	}
	// step does for a chunk what handleChunk does for one message. It returns
	// false when there is no more to be done.
	step := func(c *chunk) bool {
		i := c.next.Add(1) - 1
		if i >= int64(len(c.hs)) {
			p.finish(c, ended[c])
			return false
		}
		ended[c] = i + 1
		h := &c.hs[i]
		if h.follows && !before[c] {
			h.err = errNotReached
			return true
		}
		begin(h.d)
		what := rapid.SampledFrom([]string{"ack", "ack", "ack", "ack", "ack", "fail", "later", "nack", "ack by hand", "post", "late", "other"}).Draw(rt, "do")
		switch what {
		case "fail":
			h.err = errors.New("no")
		case "later":
			h.err = Later
			later = append(later, h.d)
		case "nack":
			if err := h.d.Nack(); err != nil {
				rt.Fatal(err)
			}
		case "ack by hand":
			acked[h.d.at]++
			if err := h.d.Ack(); err != nil {
				rt.Fatal(err)
			}
		case "post":
			p.finish(c, i)
		case "late":
			if !late[c] {
				late[c] = true
				p.spread(c)
			}
		case "other": // something of another stream comes
			p.mu.Lock()
			p.dissolveLocked()
			p.mu.Unlock()
		}
		ok := h.err == nil && h.d.state.Load() == pending
		if ok {
			acked[h.d.at]++
		}
		before[c] = ok
		if c.solo && !ok {
			p.finish(c, i+1)
			return false
		}
		return true
	}
	for range 100 * n {
		if len(acked) == n {
			break
		}
		can := []string{"take", "due"}
		if len(running) > 0 {
			can = append(can, "step", "step", "step", "late", "refused")
		}
		if len(later) > 0 {
			can = append(can, "settle later")
		}
		switch rapid.SampledFrom(can).Draw(rt, "do") {
		case "take":
			held := s.held()
			if c, _ := p.take(rapid.SampledFrom([]int{1, 20, 100}).Draw(rt, "most")); c != nil {
				running = append(running, c)
				if c.solo {
					solos++
				}
			}
			if got := s.held(); got != held {
				rt.Fatalf("the stream holds %d bytes after messages were read, and held %d before", got, held)
			}
		case "due":
			p.mu.Lock()
			if d, _ := p.mu.delayed.first(); d != nil {
				p.mu.delayed.pop()
				p.dueLocked(d)
			}
			p.mu.Unlock()
		case "step":
			i := rapid.IntRange(0, len(running)-1).Draw(rt, "which")
			if !step(running[i]) {
				running = append(running[:i], running[i+1:]...)
			}
		case "late": // also of a chunk that was dissolved
			if c := rapid.SampledFrom(running).Draw(rt, "which"); !late[c] {
				late[c] = true
				p.spread(c)
			}
		case "refused": // what a handler has acked is acked by somebody else
			c := rapid.SampledFrom(running).Draw(rt, "which")
			if i := ended[c]; i > 0 && acked[c.hs[i-1].d.at] > 0 && c.hs[i-1].d.state.Load() == settled {
				if err := c.hs[i-1].d.Ack(); !errors.Is(err, ErrSettled) {
					rt.Fatalf("a second ack of offset %d: %v", c.hs[i-1].d.at, err)
				}
				if p.mu.ready.len() > 0 && !p.mu.offered {
					rt.Fatalf("%d messages are ready and offered to nobody", p.mu.ready.len())
				}
			}
		case "settle later":
			d := later[0]
			later = later[1:]
			acked[d.at]++
			if err := d.Ack(); err != nil {
				rt.Fatal(err)
			}
		}
	}
	for _, c := range running {
		p.finish(c, ended[c])
	}
	for at := range int64(n) {
		if acked[at] != 1 {
			rt.Fatalf("offset %d was acked %d times after %d solo chunks", at, acked[at], solos)
		}
	}
	if s.held() != 0 {
		rt.Fatalf("the stream holds %d bytes, and all is settled", s.held())
	}
	if s.position() != int64(n) || p.mu.out != 0 || len(p.mu.lanes) != p.mu.idle {
		rt.Fatalf("at %d of %d, with %d out and %d lanes of which %d are idle", s.position(), n, p.mu.out, len(p.mu.lanes), p.mu.idle)
	}
}
