package devbroker

import (
	"encoding/binary"
	"reflect"
	"slices"
	"strconv"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Fault chooses requests, for [Broker.Fail], [Broker.DropReply] and
// [Broker.Hold].
type Fault struct {
	Host  string // only those of the named host; empty: of any
	Key   int16  // only those with this API key; -1: any
	Nth   int    // from the nth that matches on, counted from now; 0 is 1
	Times int    // how many; 0 is 1; -1: until removed
	Code  int16  // Fail: the error code to answer with; 0: close the connection in place of an answer
}

// rule is a fault that is armed. The network's lock guards it.
type rule struct {
	Fault
	seen int // requests that matched so far

	// What happens to a chosen request: one of these.
	close bool
	lose  bool
	hold  *hold
	mark  func(frame []byte) []byte
}

// matchLocked counts a request and returns the rules that choose it.
func (n *network) matchLocked(from string, key int16) (chosen []*rule) {
	for _, r := range n.mu.rules {
		if r.Host != "" && r.Host != from || r.Key >= 0 && r.Key != key {
			continue
		}
		r.seen++
		if over := r.seen - max(r.Nth, 1); over >= 0 && (r.Times < 0 || over < max(r.Times, 1)) {
			chosen = append(chosen, r)
		}
	}
	return chosen
}

func (n *network) arm(r *rule) (remove func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.rules = append(n.mu.rules, r)
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.mu.rules = slices.DeleteFunc(n.mu.rules, func(o *rule) bool { return o == r })
	}
}

// Fail answers the chosen requests with an error code, in place of acting on
// them, or closes their connection before they reach the broker. It returns
// what takes the fault away again.
func (b *Broker) Fail(f Fault) (remove func()) {
	if f.Code == 0 {
		return b.net.arm(&rule{Fault: f, close: true})
	}
	// The broker's own faults know which fields of a reply hold codes, but
	// not which host a request came from. So a chosen request is marked with
	// a tagged field that brokers must ignore, and the broker fails what is
	// marked.
	mark := strconv.FormatUint(b.marks.Add(1), 10)
	fault := kfake.Fault{
		Err:   kerr.TypedErrorForCode(f.Code),
		Count: -1,
		When:  func(req kmsg.Request) bool { return marked(req, mark) },
	}
	if f.Key >= 0 {
		fault.Keys = []kmsg.Key{kmsg.Key(f.Key)}
	}
	handle := b.cluster.Fault(fault)
	disarm := b.net.arm(&rule{Fault: f, mark: func(frame []byte) []byte { return withMark(frame, mark) }})
	return func() {
		disarm()
		handle.Remove()
	}
}

// DropReply lets the broker act on the chosen requests and loses its replies:
// the connection breaks when the reply is on its way.
func (b *Broker) DropReply(f Fault) (remove func()) {
	return b.net.arm(&rule{Fault: f, lose: true})
}

// Hold keeps the chosen requests, and what their connections send after them,
// from the broker until release is called, which also takes the fault away.
func (b *Broker) Hold(f Fault) (release func()) {
	h := &hold{}
	disarm := b.net.arm(&rule{Fault: f, hold: h})
	return func() {
		disarm()
		b.net.mu.Lock()
		h.released = true
		b.net.mu.Unlock()
		b.net.moveAll()
	}
}

// OnRequest calls fn with each request before it is passed on: with the host
// that it came from, "tcp" for connections from outside, and its API key.
func (b *Broker) OnRequest(fn func(host string, key int16)) {
	b.net.mu.Lock()
	defer b.net.mu.Unlock()
	b.net.mu.observers = append(slices.Clip(b.net.mu.observers), fn)
}

// markTag is the number of the tagged field that marks a request.
const markTag = 9001

func marked(req kmsg.Request, mark string) bool {
	tags := reflect.ValueOf(req).Elem().FieldByName("UnknownTags")
	if !tags.IsValid() {
		return false
	}
	found := false
	t := tags.Addr().Interface().(*kmsg.Tags)
	t.Each(func(key uint32, val []byte) { found = found || key == markTag && string(val) == mark })
	return found
}

// withMark returns the request frame with a mark. A request too old to carry
// tagged fields is returned as it is.
func withMark(frame []byte, mark string) []byte {
	key, version := int16(binary.BigEndian.Uint16(frame[4:])), int16(binary.BigEndian.Uint16(frame[6:]))
	req := kmsg.RequestForKey(key)
	req.SetVersion(version)
	if !req.IsFlexible() {
		return frame
	}
	at := 12 // size, key, version, correlation ID
	if n := int16(binary.BigEndian.Uint16(frame[at:])); n > 0 {
		at += int(n)
	}
	at += 2 + 1 // the client ID's length, the empty tags of the header
	if at > len(frame) || req.ReadFrom(frame[at:]) != nil {
		return frame
	}
	tags := reflect.ValueOf(req).Elem().FieldByName("UnknownTags").Addr().Interface().(*kmsg.Tags)
	tags.Set(markTag, []byte(mark))
	out := req.AppendTo(append([]byte(nil), frame[:at]...))
	binary.BigEndian.PutUint32(out, uint32(len(out)-4))
	return out
}
