package broker

import (
	"bytes"
	"time"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// member is a member of a group, guarded by the broker's lock.
type member struct {
	id               string
	instance         *string // of a static member
	clientID, host   string
	sessionTimeout   time.Duration
	rebalanceTimeout time.Duration
	protocols        []kmsg.JoinGroupRequestProtocol // in the order of its preference
	assignment       []byte

	join    *pending[*kmsg.JoinGroupResponse] // waits for the others to join
	sync    *pending[*kmsg.SyncGroupResponse] // waits for the leader's assignment
	joined  bool                              // in the rebalance that is going on
	synced  bool                              // in this generation
	session *time.Timer
}

// pending is an answer that waits for others. Who completes it is staged on a
// round, after which it is sent.
type pending[T any] struct {
	resp  T
	round *round
	done  chan struct{}
}

func newPending[T any](resp T) *pending[T] {
	return &pending[T]{resp: resp, done: make(chan struct{})}
}

func (p *pending[T]) complete(r *round) {
	p.round = r
	close(p.done)
}

// supports returns the member's metadata for a protocol.
func (m *member) metadata(protocol string) (metadata []byte, ok bool) {
	for _, p := range m.protocols {
		if p.Name == protocol {
			return p.Metadata, true
		}
	}
	return nil, false
}

// offers says whether the member's protocols are these.
func (m *member) offers(protocols []kmsg.JoinGroupRequestProtocol) bool {
	if len(m.protocols) != len(protocols) {
		return false
	}
	for i, p := range m.protocols {
		if p.Name != protocols[i].Name || !bytes.Equal(p.Metadata, protocols[i].Metadata) {
			return false
		}
	}
	return true
}

func (m *member) appendTo(b []byte) []byte {
	b = kbin.AppendCompactString(b, m.id)
	b = kbin.AppendCompactNullableString(b, m.instance)
	b = kbin.AppendCompactString(b, m.clientID)
	b = kbin.AppendCompactString(b, m.host)
	b = kbin.AppendVarlong(b, m.sessionTimeout.Milliseconds())
	b = kbin.AppendVarlong(b, m.rebalanceTimeout.Milliseconds())
	b = appendCount(b, len(m.protocols))
	for _, p := range m.protocols {
		b = kbin.AppendCompactString(b, p.Name)
		b = kbin.AppendCompactBytes(b, p.Metadata)
	}
	return kbin.AppendCompactBytes(b, m.assignment)
}

func readMember(d *decoder) *member {
	m := &member{
		id: d.CompactString(), instance: d.CompactNullableString(), clientID: d.CompactString(), host: d.CompactString(),
		sessionTimeout:   time.Duration(d.Varlong()) * time.Millisecond,
		rebalanceTimeout: time.Duration(d.Varlong()) * time.Millisecond,
		synced:           true,
	}
	for range d.count() {
		p := kmsg.NewJoinGroupRequestProtocol()
		p.Name = d.CompactString()
		p.Metadata = bytes.Clone(d.CompactBytes())
		m.protocols = append(m.protocols, p)
	}
	m.assignment = bytes.Clone(d.CompactBytes())
	return m
}
