package broker

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/pawlstream/pawl/internal/invariants"
	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kerr"
)

// transaction is a transactional ID's state, guarded by the broker's lock.
//
//	empty ──► ongoing ──► committed ──► ongoing …
//	             └──────► aborted ───► ongoing …
//
// There is nothing between ongoing and its end: the decision, the marker of
// every partition, the group's offsets and the producer's new state are one op.
type transaction struct {
	id         string
	producer   int64
	epoch      int16
	previous   int64 // the producer ID before the epochs ran out, or -1
	renewed    int16 // the epoch that the producer itself had renewed last, or -1
	timeout    int64 // ms
	state      transactionState
	fenced     bool // the last end was not the client's: it timed out, or another producer came
	started    int64
	updated    int64
	partitions map[*partition]struct{}
	groups     map[string]struct{}
	offsets    map[pendingOffset]committed
}

type transactionState byte

const (
	stateEmpty transactionState = iota
	stateOngoing
	stateCommitted
	stateAborted
)

// String is the state as Kafka's tools know it.
func (s transactionState) String() string {
	return [...]string{"Empty", "Ongoing", "CompleteCommit", "CompleteAbort"}[s]
}

// pendingOffset is an offset that a transaction will commit.
type pendingOffset struct {
	group string
	offsetOf
}

// epochMax is the last epoch that a producer ID is used with.
const epochMax = math.MaxInt16 - 1

func newTransaction(id string) *transaction {
	return &transaction{
		id: id, producer: noProducer, epoch: -1, previous: noProducer, renewed: -1,
		partitions: make(map[*partition]struct{}),
		groups:     make(map[string]struct{}),
		offsets:    make(map[pendingOffset]committed),
	}
}

func (x *transaction) encode() []byte {
	b := []byte{formatVersion, byte(x.state)}
	b = kbin.AppendBool(b, x.fenced)
	b = kbin.AppendInt16(b, x.epoch)
	b = kbin.AppendInt16(b, x.renewed)
	for _, n := range []int64{x.producer, x.previous, x.timeout, x.started, x.updated} {
		b = kbin.AppendVarlong(b, n)
	}
	b = appendCount(b, len(x.partitions))
	for _, p := range x.sorted() {
		b = kbin.AppendUint32(b, p.id)
	}
	b = appendCount(b, len(x.groups))
	for _, g := range slices.Sorted(maps.Keys(x.groups)) {
		b = kbin.AppendCompactString(b, g)
	}
	return b
}

// decodeTransaction reads a stored transaction, whose partitions are found by
// their numbers.
func decodeTransaction(key, val []byte, find func(uint32) *partition) (*transaction, error) {
	x := newTransaction(string(key[1:]))
	var state byte
	lost := false
	err := decode("a transaction", val, func(_ byte, d *decoder) {
		state = byte(d.Int8())
		x.fenced = d.Bool()
		x.epoch, x.renewed = d.Int16(), d.Int16()
		for _, n := range []*int64{&x.producer, &x.previous, &x.timeout, &x.started, &x.updated} {
			*n = d.Varlong()
		}
		for range d.count() {
			if p := find(d.Uint32()); p != nil {
				x.partitions[p] = struct{}{}
			} else {
				lost = true
			}
		}
		for range d.count() {
			x.groups[d.CompactString()] = struct{}{}
		}
	})
	if err == nil && (state > byte(stateAborted) || lost) {
		err = fmt.Errorf("%w: transaction %q has state %d, or a partition that is not there", ErrCorrupt, x.id, state)
	}
	x.state = transactionState(state)
	return x, err
}

// sorted returns the partitions in a fixed order.
func (x *transaction) sorted() []*partition {
	all := slices.Collect(maps.Keys(x.partitions))
	slices.SortFunc(all, func(a, b *partition) int { return int(int64(a.id) - int64(b.id)) })
	return all
}

// check says whether a request is of the producer that has the ID now.
func (x *transaction) check(producer int64, epoch int16) *kerr.Error {
	switch {
	case x == nil || producer < 0 || x.producer != producer:
		return kerr.InvalidProducerIDMapping
	case x.epoch != epoch:
		return kerr.ProducerFenced
	}
	return nil
}

// beginLocked makes the transaction an ongoing one, if it isn't.
func (x *transaction) beginLocked(at int64) (changed bool) {
	if x.state == stateOngoing {
		return false
	}
	x.state, x.started, x.fenced = stateOngoing, at, false
	return true
}

// addPartitionLocked adds a partition, and says whether it was not there.
func (x *transaction) addPartitionLocked(p *partition, at int64) (changed bool) {
	changed = x.beginLocked(at)
	if _, ok := x.partitions[p]; !ok {
		x.partitions[p] = struct{}{}
		changed = true
	}
	return changed
}

// addGroupLocked adds a group, and says whether it was not there.
func (x *transaction) addGroupLocked(group string, at int64) (changed bool) {
	changed = x.beginLocked(at)
	if _, ok := x.groups[group]; !ok {
		x.groups[group] = struct{}{}
		changed = true
	}
	return changed
}

func (x *transaction) stageLocked(at int64, o *op) {
	x.updated = at
	o.set(transactionKey(x.id), x.encode())
}

// nextEpochLocked gives the transaction its producer's next epoch, or, when
// those have run out, the first of a new producer. The markers of the one that
// ends bear the old producer's last epoch.
func (b *Broker) nextEpochLocked(x *transaction, o *op) (producer int64, epoch int16) {
	if x.producer >= 0 && x.epoch < epochMax {
		x.epoch++
		return x.producer, x.epoch
	}
	producer, epoch = x.producer, x.epoch+1
	delete(b.mu.byProducer, x.producer)
	x.previous, x.producer, x.epoch = x.producer, b.mu.producers.nextLocked(o), 0
	b.mu.byProducer[x.producer] = x
	return producer, epoch
}

// endLocked stages the end of a transaction: all of it in the one op. With bump
// the producer gets its next epoch, which the markers bear, so that each
// partition by itself refuses what the old one still sends.
func (b *Broker) endLocked(x *transaction, commit, bump bool, at int64, o *op) {
	producer, epoch := x.producer, x.epoch
	if bump {
		producer, epoch = b.nextEpochLocked(x, o)
	}
	for _, p := range x.sorted() {
		p.endTransactionLocked(producer, epoch, commit, at, o)
	}
	for k, c := range x.offsets {
		if commit {
			b.groupLocked(k.group).commitLocked(k.offsetOf, c, o)
		}
		o.remove(pendingKey(x.id, k.group, k.topic, k.partition))
		if g := b.mu.groups[k.group]; g != nil {
			g.settlePendingLocked(k.offsetOf)
		}
	}
	clear(x.partitions)
	clear(x.groups)
	clear(x.offsets)
	x.fenced, x.renewed = false, -1
	x.state = stateAborted
	if commit {
		x.state = stateCommitted
	}
	x.stageLocked(at, o)
}

// endTransactionLocked stages the marker that ends a producer's transaction in
// the partition.
func (p *partition) endTransactionLocked(producer int64, epoch int16, commit bool, at int64, o *op) {
	s := p.producers[producer]
	if s == nil {
		s = newProducerState(epoch)
		p.producers[producer] = s
	}
	invariants.Check(epoch >= s.epoch, "%s: a marker of epoch %d after epoch %d", p, epoch, s.epoch)
	m := marker(p.next, producer, epoch, commit, at)
	p.appendLocked(m, at, o)
	if first := s.txnFirst; first >= 0 {
		if !commit {
			a := aborted{producer: producer, first: first, last: m.base(), stable: p.stableAfterLocked(producer)}
			o.set(offsetKey(prefixAborted, p.id, a.last), a.encode())
			p.abortLast = a.last
		}
		o.whenApplied(func() { delete(p.visible.open, producer) })
	}
	s.ended(epoch, at)
	o.set(offsetKey(prefixProducer, p.id, producer), s.encode())
	p.stageLocked(o)
}

// stableAfterLocked is the last stable offset once a producer's transaction has
// ended, as far as is staged.
func (p *partition) stableAfterLocked(but int64) int64 {
	stable := p.next
	for id, s := range p.producers {
		if id != but && s.txnFirst >= 0 {
			stable = min(stable, s.txnFirst)
		}
	}
	return stable
}

// aborted is a transaction that was aborted in a partition, by which readers of
// committed messages skip its own.
type aborted struct {
	producer int64
	first    int64 // its first record
	last     int64 // its marker
	stable   int64 // the last stable offset after it: all that begins below has ended at or before this one
}

func (a aborted) encode() []byte {
	b := []byte{formatVersion}
	for _, n := range []int64{a.producer, a.first, a.last, a.stable} {
		b = kbin.AppendVarlong(b, n)
	}
	return b
}

func decodeAborted(val []byte) (a aborted, err error) {
	err = decode("an aborted transaction", val, func(_ byte, d *decoder) {
		a = aborted{d.Varlong(), d.Varlong(), d.Varlong(), d.Varlong()}
	})
	return a, err
}

// producerIDs gives out producer IDs, of which a run at a time is stored as
// used.
type producerIDs struct {
	next, stored int64
}

// producerRun is how many producer IDs are stored as used at a time.
const producerRun = 1000

func (p *producerIDs) nextLocked(o *op) int64 {
	if p.next == p.stored {
		p.stored += producerRun
		o.set(metaKey(metaNextProducer), kbin.AppendInt64([]byte{formatVersion}, p.stored))
	}
	p.next++
	return p.next - 1
}
