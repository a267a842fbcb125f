package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/pawlstream/pawl/store"
)

// Three tables: values that are copied whole, values that are changed in place,
// and keys of which many stand for one.
var (
	modelCounts = store.NewTable("model/counts", store.String, store.Int64)
	modelLists  = store.NewTable("model/lists", store.PairOf(store.String, store.Int64), store.JSON[[]string]())
	modelTimes  = store.NewTable("model", store.Time, store.String)
	modelTimed  = store.NewTable("model/timed", store.String, store.Int64, store.TTL(modelTTL))
)

const modelTTL = 10 * time.Second

// state is what a database holds, as a test imagines it.
type state struct {
	Raw    map[string]string
	Counts map[string]int64
	Lists  map[store.Pair[string, int64]]string // joined
	Times  map[int64]string                     // by nanosecond
	Timed  map[string]timed
	Timers map[string]int64 // by second
}

// A timed value is one that expires.
type timed struct {
	Val int64
	At  time.Time // of the last write
}

func (v timed) expired(now time.Time) bool { return now.Sub(v.At) >= modelTTL }

func newState() state {
	return state{map[string]string{}, map[string]int64{}, map[store.Pair[string, int64]]string{}, map[int64]string{}, map[string]timed{}, map[string]int64{}}
}

func (s state) clone() state {
	return state{maps.Clone(s.Raw), maps.Clone(s.Counts), maps.Clone(s.Lists), maps.Clone(s.Times), maps.Clone(s.Timed), maps.Clone(s.Timers)}
}

// diff compares what is to be seen at a time with what a reader saw, who doesn't
// see when values were written.
func (s state) diff(now time.Time, t state) string {
	s = s.clone()
	for k, v := range s.Timed {
		if v.expired(now) {
			delete(s.Timed, k)
		} else {
			s.Timed[k] = timed{Val: v.Val}
		}
	}
	return cmp.Diff(s, t, cmpopts.EquateEmpty())
}

// readAll reads everything that a transaction sees, and checks the order.
func readAll(t *store.Transaction) (state, error) {
	s := newState()
	ordered := func(what string, less bool) error {
		if !less {
			return fmt.Errorf("%s out of order", what)
		}
		return nil
	}
	var errs []error
	last := []byte(nil)
	for k, v := range t.Scan(nil) {
		errs = append(errs, ordered("raw", last == nil || bytes.Compare(last, k) < 0))
		last = append([]byte{}, k...)
		s.Raw[string(k)] = string(v)
	}
	var lastCount string
	for k, v := range modelCounts.All(t) {
		errs = append(errs, ordered("counts", len(s.Counts) == 0 || lastCount < k))
		lastCount = k
		s.Counts[k] = v
	}
	var lastPair store.Pair[string, int64]
	for k, v := range modelLists.All(t) {
		errs = append(errs, ordered("lists", len(s.Lists) == 0 || comparePairs(lastPair, k) < 0))
		lastPair = k
		s.Lists[k] = strings.Join(v, ",")
	}
	for k, v := range modelTimes.All(t) {
		s.Times[k.UnixNano()] = v
	}
	for k, v := range modelTimed.All(t) {
		s.Timed[k] = timed{Val: v}
	}
	for _, k := range modelKeys {
		at, ok, err := t.Timer([]byte(k))
		errs = append(errs, err)
		if ok {
			s.Timers[k] = at.Unix()
		}
	}
	return s, errors.Join(append(errs, t.Err())...)
}

func comparePairs(a, b store.Pair[string, int64]) int {
	if c := strings.Compare(a.First, b.First); c != 0 {
		return c
	}
	return int(max(-1, min(1, a.Second-b.Second)))
}

func readCommitted(o *store.Owner) (s state, err error) {
	err = o.DB().View(func(t *store.Transaction) error {
		s, err = readAll(t)
		return err
	})
	return s, err
}
