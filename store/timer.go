package store

import (
	"bytes"
	"errors"
	"fmt"
	"time"
)

// A Timer is a key and when it is due.
type Timer struct {
	Key []byte
	At  time.Time
}

// timers are the shard's timers as the transaction sees them. Each is two
// records, by key and by time, changed together:
//
//	03 01 key          when it is due
//	03 02 time key     nothing: the order of time
type timers struct {
	overlay

	// What the transaction's earliest timer is, if known.
	known bool
	ok    bool
	next  time.Time

	// No timer is due before low, so that a scan needn't pass what is left of
	// those that were. Empty for not known.
	low []byte
}

// SetTimer sets the timer of a key: the consumer's Fire is called for it at or
// after its time, in a transaction that removes it. A key has one timer: setting
// it again moves it. Like all that a transaction writes it is forgotten when
// that aborts, and once committed outlives crashes and moves of the shard.
func (t *Transaction) SetTimer(key []byte, at time.Time) error {
	if err := t.writable(); err != nil {
		return err
	}
	at = at.UTC().Round(0)
	old, ok, err := t.Timer(key)
	if err != nil || ok && old.Equal(at) {
		return err
	}
	if ok {
		t.timers.remove(key, old)
	}
	t.timers.set(key, at)
	return nil
}

// CancelTimer removes the timer of a key, whether or not it has one.
func (t *Transaction) CancelTimer(key []byte) error {
	if err := t.writable(); err != nil {
		return err
	}
	at, ok, err := t.Timer(key)
	if err == nil && ok {
		t.timers.remove(key, at)
	}
	return err
}

// Timer returns when the timer of a key is due, if it has one.
func (t *Transaction) Timer(key []byte) (at time.Time, ok bool, err error) {
	if err := t.readable(); err != nil {
		return at, false, err
	}
	t.full = appendTimerKey(t.full[:0], key)
	stored, ok := []byte(nil), false
	if c := t.timers.keys[string(t.full)]; c != nil {
		stored, ok = c.val, !c.deleted
	} else if stored, ok, err = t.point.get(t.d, t.from, t.full, t.stored[:0]); err == nil && ok {
		t.stored = stored
	}
	if err != nil || !ok {
		return at, false, err
	}
	at, err = decodeTimer(stored)
	if err != nil {
		return at, false, fmt.Errorf("read timer %q of %s: %w: %w", key, t.d.dir, ErrCorrupt, err)
	}
	return at, true, nil
}

func (s *timers) set(key []byte, at time.Time) {
	b := TimeCodec{}.AppendKey(nil, at)
	s.put(appendTimerKey(nil, key), valueTimer, b)
	s.put(appendDueKey(nil, at, key), valueTimer, nil)
	if s.known && (!s.ok || at.Before(s.next)) {
		s.ok, s.next = true, at
	}
	if bytes.Compare(b, s.low) < 0 {
		s.low = b
	}
}

func (s *timers) remove(key []byte, at time.Time) {
	s.delete(appendTimerKey(nil, key))
	s.delete(appendDueKey(nil, at, key))
	if s.known && at.Equal(s.next) {
		s.known = false
	}
}

// end makes the timers those of the next transaction.
func (s *timers) end(committed bool) {
	s.reset()
	if !committed {
		s.forget()
	}
}

// forget drops what is known of the timers that there are.
func (s *timers) forget() { s.known, s.low = false, nil }

// NextTimer returns when the first timer is due, those that the open transaction
// has set among them. Like DueTimers and TakeTimer it is for whoever uses the
// transaction at the moment.
func (o *Owner) NextTimer() (at time.Time, ok bool, err error) {
	s := &o.tx.timers
	if err := o.tx.readable(); err != nil {
		return at, false, err
	}
	if !s.known {
		first, err := o.DueTimers(time.Unix(1<<62-1, 0), 1)
		if err != nil {
			return at, false, err
		}
		s.known, s.ok = true, len(first) > 0
		if s.ok {
			s.next = first[0].At
			s.low = TimeCodec{}.AppendKey(nil, s.next)
		}
	}
	return s.next, s.ok, nil
}

// DueTimers returns up to max timers that are due at a time, the earliest first,
// as the open transaction sees them.
func (o *Owner) DueTimers(now time.Time, max int) (due []Timer, err error) {
	if err := o.tx.readable(); err != nil {
		return nil, err
	}
	s := &o.tx.timers
	lower := append([]byte{spaceTimer, timerByTime}, s.low...)
	upper := prefixEnd(appendDueKey(nil, now, nil))
	m := newMerge(o.tx, &s.changes, lower, upper, false)
	err = m.run(func(stored, _ []byte, own *rawChange) (bool, error) {
		if own != nil && own.deleted {
			return true, nil
		}
		t, err := decodeDueKey(stored)
		if err != nil {
			return false, fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		due = append(due, t)
		return len(due) < max, nil
	})
	if err != nil {
		return nil, fmt.Errorf("timers of %s: %w", o.config.Dir, err)
	}
	return due, nil
}

// TakeTimer removes a timer that was found to be due, within the open
// transaction. It returns false if the transaction has moved or cancelled the
// timer since: then it must not fire.
func (o *Owner) TakeTimer(t Timer) (ok bool, err error) {
	if err := o.tx.writable(); err != nil {
		return false, err
	}
	at, ok, err := o.tx.Timer(t.Key)
	if err != nil || !ok || !at.Equal(t.At) {
		return false, err
	}
	o.tx.timers.remove(t.Key, at)
	return true, nil
}

// What follows the key space in a timer's two records.
const (
	timerByKey  = 0x01
	timerByTime = 0x02

	timeSize = 12
)

func appendTimerKey(dst, key []byte) []byte {
	return append(append(dst, spaceTimer, timerByKey), key...)
}

func appendDueKey(dst []byte, at time.Time, key []byte) []byte {
	return append(TimeCodec{}.AppendKey(append(dst, spaceTimer, timerByTime), at), key...)
}

func decodeDueKey(stored []byte) (t Timer, err error) {
	if len(stored) < 2+timeSize || stored[0] != spaceTimer || stored[1] != timerByTime {
		return t, fmt.Errorf("stored key %x: not a timer by time", clip(stored))
	}
	if t.At, err = (TimeCodec{}).DecodeKey(stored[2 : 2+timeSize]); err != nil {
		return t, fmt.Errorf("stored key %x: %w", clip(stored), err)
	}
	t.Key = append([]byte{}, stored[2+timeSize:]...)
	return t, nil
}

// decodeTimer returns when a timer is due, from what is stored under its key.
func decodeTimer(stored []byte) (time.Time, error) {
	if len(stored) != 1+timeSize || stored[0] != valueTimer {
		return time.Time{}, fmt.Errorf("stored value %x: not a timer", clip(stored))
	}
	return TimeCodec{}.DecodeKey(stored[1:])
}

// checkTimer reports whether a logged record in the space of timers is one.
func checkTimer(key, value []byte) error {
	if len(key) < 2 {
		return errors.New("stored key of a timer is cut off")
	}
	switch key[1] {
	case timerByKey:
		if value == nil {
			return nil
		}
		_, err := decodeTimer(value)
		return err
	case timerByTime:
		if _, err := decodeDueKey(key); err != nil {
			return err
		}
		if value != nil && (len(value) != 1 || value[0] != valueTimer) {
			return fmt.Errorf("stored value %x: not a timer's", clip(value))
		}
		return nil
	default:
		return fmt.Errorf("stored key %x: unknown kind of timer %#02x", clip(key), key[1])
	}
}
