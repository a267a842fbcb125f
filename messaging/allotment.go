package messaging

import (
	"sync"
	"sync/atomic"
)

// allotment shares Config.MaxBytes out among the streams of a worker: the input,
// the redriven messages and the delay topics of each of its partitions.
//
//	0                      half                               limit
//	├ share ┼ share ┼ … ┼ share ┼─── lent ───┼┄┄┄┄┄┄ free ┄┄┄┄┄┄┤
//
// Half of the limit is promised: each stream has an equal share of it that no
// other can take. So a partition that is stuck starves no other, and the input
// and the delay topics don't starve each other: a key that is held back by a
// message in a delay topic goes on, as there is always room to read that. The
// other half is lent, to each stream no more than stays free beside it: n that
// borrow all they can have an (n+1)th of it each, and the next finds as much.
//
// A stream that is fetched has booked what it holds and what comes next: as much
// as last time, and at least the size of a fetch, which is a quarter of a share.
// One that holds nothing is always fetched, and so is one that has room for two
// fetches within its share. So what is larger than a share gets through, alone, and
// nothing can wait for ever. All streams together hold no more than the limit, and
// of each stream what one fetch has brought above its share when there was room
// within that, or above the fetch before it; and the shares of
// partitions that have just come, until others have given back as much. A fetch
// brings one batch at least, however large that is once it is unpacked.
type allotment struct {
	limit int64
	step  atomic.Int64 // by how much less a stream holds before it is worth to be noted

	mu struct {
		sync.Mutex
		accounts map[*account]bool
		share    int64 // of a stream
		lent     int64 // booked above the shares
	}
}

// account is what a stream has of an allotment, whose lock guards it.
type account struct {
	in     bool  // it is one of the allotment's
	open   bool  // the stream may be fetched
	booked int64 // what it holds, and what comes next if it is open and holds anything
}

// The sizes of fetches of one stream.
const (
	fetchMin = 1 // more comes if the first batch is larger
	fetchMax = 1 << 20
)

func newAllotment(limit int64) *allotment {
	a := &allotment{limit: limit}
	a.mu.accounts = make(map[*account]bool)
	return a
}

// add gives streams a share. They hold nothing yet, and may be fetched.
func (a *allotment) add(streams ...*stream) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range streams {
		s.account = account{in: true, open: true}
		a.mu.accounts[&s.account] = true
	}
	a.shareLocked()
}

// remove takes back all that streams have.
func (a *allotment) remove(streams ...*stream) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range streams {
		delete(a.mu.accounts, &s.account)
		s.account = account{}
	}
	a.shareLocked()
}

// shareLocked works out what the shares are, and what is lent beyond them.
func (a *allotment) shareLocked() {
	a.mu.share, a.mu.lent = 0, 0
	if n := int64(len(a.mu.accounts)); n > 0 {
		a.mu.share = a.limit / 2 / n
	}
	a.step.Store(max(1, a.mu.share/16))
	for c := range a.mu.accounts {
		a.mu.lent += a.aboveLocked(c.booked)
	}
}

// aboveLocked is how much of what is booked is lent.
func (a *allotment) aboveLocked(booked int64) int64 { return max(0, booked-a.mu.share) }

// fetch is how much is to be fetched of a stream at once.
func (a *allotment) fetch() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.fetchLocked()
}

// fetchLocked is the size of a fetch. Where no stream has a share yet, those of a
// partition that comes are looked through, and nothing of them is held.
func (a *allotment) fetchLocked() int64 {
	if len(a.mu.accounts) == 0 {
		return fetchMax
	}
	return max(fetchMin, min(a.mu.share/4, fetchMax))
}

// note takes note of how much a stream holds and what its last fetch has
// brought, and says whether it may be fetched; may, whether its other limits let
// it. One that might not be fetched may be again once there is room for two
// fetches, or for half of what it could have.
func (a *allotment) note(c *account, held, last int64, may bool) (open bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !c.in {
		return may
	}
	next := max(last, a.fetchLocked())
	a.mu.lent -= a.aboveLocked(c.booked)
	could := a.mu.share + max(0, a.limit-a.mu.share*int64(len(a.mu.accounts))-a.mu.lent)/2
	a.mu.lent += a.aboveLocked(c.booked)
	nominal := a.fetchLocked() // what is promised does not depend on what came last
	open = may && (held == 0 || held+2*nominal <= a.mu.share || held+next <= could && (c.open || held+2*next <= could || held <= could/2))
	booked := held
	if open && held > 0 {
		booked += next
	}
	a.mu.lent += a.aboveLocked(booked) - a.aboveLocked(c.booked)
	c.booked, c.open = booked, open
	return open
}
