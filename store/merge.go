package store

import (
	"bytes"
	"errors"
)

// A merge goes over committed keys and the transaction's own together, in
// order; the transaction's own stand in for committed ones.
type merge[T changed] struct {
	t       *Transaction
	walk    *walk[T]
	lower   []byte
	upper   []byte
	reverse bool
	ended   uint64 // how many transactions had ended when it began
}

// errOutlived is what a scan answers that goes on after the transaction that it
// began in.
var errOutlived = errors.New("the transaction that the scan began in has ended")

func newMerge[T changed](t *Transaction, own *ordered[T], lower, upper []byte, reverse bool) merge[T] {
	m := merge[T]{t: t, lower: lower, upper: upper, reverse: reverse, ended: t.ended}
	if t.readable() == nil {
		m.walk = newWalk(own.sorted(&t.sorter), lower, upper, reverse)
	}
	return m
}

// run calls step for each key until it returns false: with the stored value if
// the key is as committed, or with the transaction's own entry.
func (m merge[T]) run(step func(stored, committed []byte, own T) (more bool, err error)) (err error) {
	if err := m.t.readable(); err != nil {
		return err
	}
	if m.upper != nil && bytes.Compare(m.lower, m.upper) >= 0 {
		return nil
	}
	c, err := m.t.d.newCursor(m.t.from, m.lower, m.upper, m.reverse)
	if err != nil {
		return err
	}
	defer func() {
		if e := c.close(); err == nil {
			err = e
		}
	}()
	var none T
	for {
		if m.t.ended != m.ended {
			return errOutlived
		}
		own, has := m.walk.head()
		order := 0 // of the own key against the committed one
		switch {
		case !has && !c.ok:
			return nil
		case !has:
			order = 1
		case !c.ok:
			order = -1
		default:
			order = bytes.Compare(own.storedKey(), c.key)
			if m.reverse {
				order = -order
			}
		}
		var more bool
		if order <= 0 {
			m.walk.advance()
			more, err = step(own.storedKey(), nil, own)
		} else {
			more, err = step(c.key, c.val, none)
		}
		if err != nil || !more {
			return err
		}
		if err := m.t.readable(); err != nil {
			return err
		}
		if order >= 0 {
			if err := c.advance(); err != nil {
				return err
			}
		}
	}
}
