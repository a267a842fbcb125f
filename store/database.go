package store

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/pawlstream/pawl/internal/invariants"
)

// database is Pebble as the rest of the package sees it: reads from any
// goroutine at any time, also while it closes. A read is counted in while it is
// inside Pebble and not a moment longer, so that Close waits for Pebble alone,
// never for the code that uses what was read: a scan whose loop body hangs
// finds at its next step that the database is closed.
type database struct {
	dir string
	db  *pebble.DB

	// settle is called before the state as it is now is read: see pending.
	settle  func() error
	settled func() bool // whether there is nothing to settle

	direct  *direct
	exists  existence
	now     func() time.Time
	failure *failure

	mu struct {
		sync.Mutex
		closed error         // what reads answer once it is; nil while it isn't
		inside int           // reads that are inside Pebble
		idle   chan struct{} // closed when the last one leaves a closed database
		open   map[io.Closer]struct{}
	}
}

func newDatabase(dir string, db *pebble.DB) *database {
	d := &database{dir: dir, db: db, direct: newDirect(), now: time.Now, failure: newFailure(), settle: func() error { return nil }, settled: func() bool { return true }}
	d.mu.idle = make(chan struct{})
	d.mu.open = make(map[io.Closer]struct{})
	return d
}

func (d *database) enter() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.closed != nil {
		return d.mu.closed
	}
	d.mu.inside++
	return nil
}

func (d *database) exit() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.inside--
	if d.mu.closed != nil && d.mu.inside == 0 {
		close(d.mu.idle)
	}
}

// closeReads ends all reads: those inside Pebble are waited for, iterators and
// snapshots that are still open are closed, later ones answer with the reason.
func (d *database) closeReads(reason error) error {
	d.mu.Lock()
	d.mu.closed = reason
	busy := d.mu.inside > 0
	d.mu.Unlock()
	if busy {
		<-d.mu.idle
	}
	// Nothing enters any more, so the set is ours. Iterators go before the
	// snapshots that they may read.
	var errs []error
	for c := range d.mu.open {
		if _, ok := c.(*pebble.Snapshot); !ok {
			errs = append(errs, c.Close())
		}
	}
	for c := range d.mu.open {
		if s, ok := c.(*pebble.Snapshot); ok {
			errs = append(errs, s.Close())
		}
	}
	d.mu.open = nil
	return errors.Join(errs...)
}

// keep enters an iterator or a snapshot into the set that closeReads closes.
// The caller is inside.
func (d *database) keep(c io.Closer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.open[c] = struct{}{}
}

// release closes what keep entered, unless closeReads has.
func (d *database) release(c io.Closer) error {
	if d.enter() != nil {
		return nil
	}
	defer d.exit()
	d.mu.Lock()
	delete(d.mu.open, c)
	d.mu.Unlock()
	return c.Close()
}

// whole makes the database whole before it is read, which a snapshot is.
func (d *database) whole(from pebble.Reader) error {
	if _, now := from.(*pebble.DB); now {
		return d.settle()
	}
	return nil
}

// above returns the direct write of a key above what is committed, if there is
// one. A val of nil is a delete.
func (d *database) above(from pebble.Reader, key []byte) (val []byte, found bool) {
	switch from := from.(type) {
	case *pebble.DB:
		return d.direct.get(key)
	case *frozen:
		return from.above.get(key)
	default:
		return nil, false
	}
}

// get appends the stored value of a key to dst.
func (d *database) get(from pebble.Reader, key, dst []byte) (val []byte, ok bool, err error) {
	if v, found := d.above(from, key); found {
		return append(dst, v...), v != nil, nil
	}
	if err := d.whole(from); err != nil {
		return nil, false, err
	}
	if err := d.enter(); err != nil {
		return nil, false, err
	}
	defer d.exit()
	v, closer, err := from.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, d.readError(err)
	}
	val = append(dst, v...)
	return val, true, closer.Close()
}

// A point looks up single keys with one iterator, which it keeps from one key
// to the next. That saves setting it up, and unlike a plain get it asks the
// filters of the last level too, where most keys are: an absent key costs a
// third. It sees the database as it was at the first key after the last drop,
// and keeps that alive.
type point struct {
	it      *pebble.Iterator
	lookups int64 // that it was asked for and could not answer without the iterator
}

// get appends the stored value of a key to dst.
func (p *point) get(d *database, from pebble.Reader, key, dst []byte) (val []byte, ok bool, err error) {
	if v, found := d.above(from, key); found {
		return append(dst, v...), v != nil, nil
	}
	_, now := from.(*pebble.DB)
	missing := now && d.exists.missing(key)
	if missing && !invariants.Enabled {
		return nil, false, nil
	}
	if !missing {
		p.lookups++
	}
	if p.it == nil {
		if err := d.whole(from); err != nil {
			return nil, false, err
		}
	}
	if err := d.enter(); err != nil {
		return nil, false, err
	}
	defer d.exit()
	if p.it == nil {
		it, err := from.NewIter(&pebble.IterOptions{UseL6Filters: true})
		if err != nil {
			return nil, false, d.readError(err)
		}
		d.keep(it)
		p.it = it
	}
	// All of a key is its prefix: what is found is this key or nothing.
	if !p.it.SeekPrefixGE(key) {
		if err := p.it.Error(); err != nil {
			return nil, false, d.readError(err)
		}
		if now {
			d.exists.noted(d)
		}
		return nil, false, nil
	}
	invariants.Check(!missing, "key %x is stored, and its filter lacks it", key)
	invariants.Check(bytes.Equal(p.it.Key(), key), "looked up key %x and found %x", key, p.it.Key())
	v, err := p.it.ValueAndErr()
	if err != nil {
		return nil, false, d.readError(err)
	}
	return append(dst, v...), true, nil
}

// drop ends the view that the point has of the database.
func (p *point) drop(d *database) error {
	if p.it == nil {
		return nil
	}
	it := p.it
	p.it = nil
	if err := d.release(it); err != nil {
		return d.readError(err)
	}
	return nil
}

// A frozen is a snapshot with the direct writes above it.
type frozen struct {
	*pebble.Snapshot
	above directView
}

func compareChange(c Change, key []byte) int { return bytes.Compare(c.Key, key) }

// snapshot fixes the state, and the direct writes above it, until it is
// released.
func (d *database) snapshot() (*frozen, error) {
	for {
		if err := d.settle(); err != nil {
			return nil, err
		}
		if f, err := d.freeze(); f != nil || err != nil {
			return f, err
		}
	}
}

// freeze makes the snapshot, or none if there is something to settle again.
func (d *database) freeze() (*frozen, error) {
	if err := d.enter(); err != nil {
		return nil, err
	}
	defer d.exit()
	// No transaction is applied meanwhile: what it takes from above goes below.
	d.direct.mu.Lock()
	defer d.direct.mu.Unlock()
	if !d.settled() {
		return nil, nil
	}
	s := d.db.NewSnapshot()
	d.keep(s)
	return &frozen{s, d.direct.viewLocked()}, nil
}

// readError notes that the database could not be read, and says of what.
func (d *database) readError(err error) error {
	d.failure.note(err)
	if pebble.IsCorruptionError(err) {
		return fmt.Errorf("read database %s: %w: %w", d.dir, ErrCorrupt, err)
	}
	return fmt.Errorf("read database %s: %w", d.dir, err)
}

// A cursor goes over stored keys in order, in either direction, direct writes
// among them. What it stands on is copied, so that it outlives the database's
// closing.
type cursor struct {
	d        *database
	it       *pebble.Iterator
	itOK     bool
	view     directView
	above    *walk[*directKey] // the direct writes that are left
	reverse  bool
	ok       bool
	key, val []byte
}

// newCursor stands on the first key within the bounds.
func (d *database) newCursor(from pebble.Reader, lower, upper []byte, reverse bool) (*cursor, error) {
	c := &cursor{d: d, reverse: reverse}
	switch from := from.(type) {
	case *pebble.DB:
		c.view = d.direct.view()
	case *frozen:
		c.view = from.above
	}
	if len(c.view.runs) > 0 {
		c.above = newWalk(c.view.runs, lower, upper, reverse)
	}
	if err := d.whole(from); err != nil {
		return nil, err
	}
	if err := d.enter(); err != nil {
		return nil, err
	}
	defer d.exit()
	it, err := from.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return nil, d.readError(err)
	}
	d.keep(it)
	c.it = it
	if reverse {
		c.itOK = it.Last()
	} else {
		c.itOK = it.First()
	}
	if err := c.load(); err != nil {
		return nil, errors.Join(err, d.release(it))
	}
	return c, nil
}

// advance goes on to the next key.
func (c *cursor) advance() error {
	if err := c.d.enter(); err != nil {
		return err
	}
	defer c.d.exit()
	if c.itOK && bytes.Equal(c.it.Key(), c.key) {
		c.step()
	}
	return c.load()
}

func (c *cursor) step() {
	if c.reverse {
		c.itOK = c.it.Prev()
	} else {
		c.itOK = c.it.Next()
	}
}

// load stands on the next key of the two that has a value. What it takes from
// above is left there no more, with what it stands for below.
func (c *cursor) load() error {
	for c.above != nil {
		head, ok := c.above.head()
		if !ok {
			break
		}
		order := -1 // of the one above against the one below
		if c.itOK {
			if order = bytes.Compare(head.key, c.it.Key()); c.reverse {
				order = -order
			}
		}
		if order > 0 {
			break
		}
		if order == 0 {
			c.step()
		}
		c.above.advance()
		if val := c.view.val(head); val != nil {
			c.ok = true
			c.key, c.val = append(c.key[:0], head.key...), append(c.val[:0], val...)
			return nil
		}
	}
	if c.ok = c.itOK; !c.ok {
		if err := c.it.Error(); err != nil {
			return c.d.readError(err)
		}
		return nil
	}
	v, err := c.it.ValueAndErr()
	if err != nil {
		return c.d.readError(err)
	}
	c.key = append(c.key[:0], c.it.Key()...)
	c.val = append(c.val[:0], v...)
	return nil
}

func (c *cursor) close() error { return c.d.release(c.it) }
