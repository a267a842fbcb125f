package store

// A SweptKey is a user's key as a sweep shows it.
type SweptKey struct {
	Table string // the table's name, empty for a raw key
	Key   []byte
}

// A Sweep goes over all committed keys, a few at a time.
type Sweep struct{}

// NewSweep returns a Sweep, nil if there is nothing to sweep for.
func (o *Owner) NewSweep(filter func(k SweptKey, val []byte) (remove bool, newVal []byte)) *Sweep {
	return nil
}

// Step looks at up to max keys.
func (s *Sweep) Step(max int) (done bool, err error) { return true, nil }
