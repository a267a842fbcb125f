package kafka

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// topicOf returns the routes of one topic of so many partitions.
func topicOf(partitions int) *routes {
	r := &route{name: "out", limit: batchTarget}
	for i := range partitions {
		r.parts = append(r.parts, &target{route: r, number: int32(i)})
	}
	return &routes{topics: map[string]*route{r.name: r}, asked: time.Now()}
}

// holds returns how much memory the partitions of the topic hold.
func (rs *routes) holds() (bytes int) {
	for _, t := range rs.topics["out"].parts {
		bytes += cap(t.buf)
	}
	return bytes
}

// A session that writes to thousands of partitions, some at a time, holds memory
// for a few transactions, and not for a large one to each of them.
func TestMemoryOfManyPartitions(t *testing.T) {
	const partitions, atOnce = 5_000, 5
	rs := topicOf(partitions)
	var o outgoing
	write := func(size int, numbers ...int) {
		t.Helper()
		var recs []Record
		for _, n := range numbers {
			recs = append(recs, Record{Topic: "out", Partition: int32(n), Value: make([]byte, size)})
		}
		if err := o.build(recs, rs, true); err != nil {
			t.Fatal(err)
		}
		for _, n := range numbers {
			if got := len(rs.topics["out"].parts[n].buf); got < size {
				t.Fatalf("partition %d has %d bytes to send, want %d and more", n, got, size)
			}
		}
		o.clear()
	}
	const size = 100 << 10
	for round := range 2 {
		for first := 0; first < partitions; first += atOnce {
			var numbers []int
			for i := range atOnce {
				numbers = append(numbers, first+i)
			}
			write(size, numbers...)
			if got, most := rs.holds(), keptTimes*atOnce*(size+1<<10); got > most {
				t.Fatalf("round %d, at partition %d: the partitions hold %d bytes, want at most %d", round, first, got, most)
			}
		}
	}
	for range 200 { // what is large goes, once nothing is any more
		write(10, 1, 2, 3)
	}
	if got := rs.holds(); got > keptMin {
		t.Errorf("the partitions hold %d bytes after small transactions, want at most %d", got, keptMin)
	}
}

// Transactions that are like the last ones use its memory again.
func TestMemoryIsUsedAgain(t *testing.T) {
	for _, c := range []struct{ partitions, size int }{{1, 100}, {3, 300 << 10}, {2_000, 100}} {
		t.Run(fmt.Sprintf("%d times %d bytes", c.partitions, c.size), func(t *testing.T) {
			rs := topicOf(2 * c.partitions)
			var sets [2][]Record // which take turns
			for i := range 2 * c.partitions {
				sets[i%2] = append(sets[i%2], Record{Topic: "out", Partition: int32(i), Value: make([]byte, c.size)})
			}
			var o outgoing
			turn := 0
			build := func() {
				if err := o.build(sets[turn%2], rs, true); err != nil {
					t.Fatal(err)
				}
				o.clear()
				turn++
			}
			for range 4 {
				build()
			}
			if n := testing.AllocsPerRun(10, build); n > 0 {
				t.Errorf("%v allocations for a transaction, want none", n)
			}
		})
	}
}

// However transactions come, what is counted as held is what is held, by those
// that are known to hold it, and as much as may be.
func TestMemoryProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rs := topicOf(rapid.IntRange(1, 50).Draw(t, "partitions"))
		parts := rs.topics["out"].parts
		var o outgoing
		for range rapid.IntRange(1, 60).Draw(t, "transactions") {
			var recs []Record
			for range rapid.IntRange(1, 10).Draw(t, "records") {
				size := 1 << rapid.IntRange(0, 18).Draw(t, "size")
				recs = append(recs, Record{Topic: "out", Partition: int32(rapid.IntRange(0, len(parts)-1).Draw(t, "partition")), Value: make([]byte, size)})
			}
			if err := o.build(recs, rs, true); err != nil {
				t.Fatal(err)
			}
			o.clear()
			counted := 0
			for _, held := range o.memory.held {
				counted += cap(held.buf)
			}
			if got := rs.holds(); got != counted || got != o.memory.bytes {
				t.Fatalf("the partitions hold %d bytes, those that are known to %d, and %d are counted", got, counted, o.memory.bytes)
			}
			if most := max(keptTimes*o.memory.peak, keptMin); counted > most {
				t.Fatalf("%d bytes are held, want at most %d", counted, most)
			}
		}
	})
}
