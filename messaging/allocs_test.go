package messaging_test

import (
	"testing"

	"github.com/pawlstream/pawl/messaging"
)

// To read an item and ack it allocates nothing, however many are unsettled.
func TestAckManagerAllocatesNothing(t *testing.T) {
	for _, unsettled := range []int64{0, 1000} {
		m := messaging.NewAckManager(0)
		next := int64(0)
		for ; next < unsettled; next++ {
			if err := m.ReadItem(next); err != nil {
				t.Fatal(err)
			}
		}
		allocs := testing.AllocsPerRun(10_000, func() {
			if err := m.ReadItem(next); err != nil {
				t.Fatal(err)
			}
			m.AckItem(next - unsettled)
			next++
		})
		if allocs != 0 {
			t.Errorf("with %d unsettled, a read and an ack allocate %v times, want none", unsettled, allocs)
		}
		if got, want := m.GetAckLevel(), next-1-unsettled; got != want {
			t.Errorf("the ack level is %d, want %d", got, want)
		}
	}
}
