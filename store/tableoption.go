package store

import (
	"fmt"
	"time"
)

// A TableOption is something that not every Table has.
type TableOption func(*tableOptions)

type tableOptions struct {
	ttl     time.Duration
	version int
	older   any // []ValueCodec[V]
	err     error
}

// TTL makes a table's entries expire a while after they were last written, by
// the clock of the process that reads. An expired entry is gone from all reads at
// once; a sweep deletes it later, from changelog and copies too. Entries that
// were written before the table had a TTL expire once they are written again.
func TTL(after time.Duration) TableOption {
	return func(o *tableOptions) {
		o.ttl = after
		if after < time.Millisecond {
			o.err = fmt.Errorf("TTL %v: want a millisecond or more", after)
		}
	}
}

// Version says that the table's value codec is its nth: 0 is what a table has
// that says nothing. Values carry the number of the codec that wrote them; those
// of older ones are decoded by the codecs given here, the one of version 0
// first, and take the new form when they are written again. A version that no
// value is left of may be nil. A program of an older version does not read what
// a newer one wrote: it says so, by error.
//
//	store.NewTable("orders", store.String, store.JSON[Order](), store.Version[Order](2, ordersV0{}, ordersV1{}))
func Version[V any](n int, older ...ValueCodec[V]) TableOption {
	return func(o *tableOptions) {
		o.version, o.older = n, older
		if n < 1 || len(older) != n {
			o.err = fmt.Errorf("version %d with %d older codecs: want one for each version from 0 on", n, len(older))
		}
	}
}
