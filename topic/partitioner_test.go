package topic

import (
	"encoding/hex"
	"os"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// partitions.tsv was made with Kafka's Java client. One row that differed
// would send a key's messages to a shard that another producer does not use.
func TestPartitionFor(t *testing.T) {
	table, err := os.ReadFile("testdata/partitions.tsv")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(table), "\n"), "\n")
	head := strings.Split(lines[0], "\t")
	if got, want := strings.Join(head, " "), "key key_hex murmur2 p1 p3 p7 p12 p50"; got != want {
		t.Fatalf("columns are %q, want %q", got, want)
	}
	if got, want := len(lines)-1, 30; got != want {
		t.Errorf("%d rows, want %d", got, want)
	}
	for _, line := range lines[1:] {
		row := strings.Split(line, "\t")
		key, err := hex.DecodeString(row[1])
		if err != nil {
			t.Fatalf("key of %q: %v", row[0], err)
		}
		hash, err := strconv.ParseUint(row[2], 0, 32)
		if err != nil {
			t.Fatalf("hash of %q: %v", row[0], err)
		}
		if got := murmur2(key); got != uint32(hash) {
			t.Errorf("murmur2(%s) = %#08x, want %#08x", row[0], got, hash)
		}
		for i, column := range head[3:] {
			n, err := strconv.Atoi(strings.TrimPrefix(column, "p"))
			if err != nil {
				t.Fatalf("column %q: %v", column, err)
			}
			want, err := strconv.Atoi(row[3+i])
			if err != nil {
				t.Fatalf("%q in column %s: %v", row[0], column, err)
			}
			if got := PartitionFor(key, n); got != int32(want) {
				t.Errorf("PartitionFor(%s, %d) = %d, want %d", row[0], n, got, want)
			}
		}
	}
}

// A key whose hash is negative as a signed number: taking the absolute value in
// place of clearing the sign bit gives another partition.
func TestPartitionForNegativeHash(t *testing.T) {
	if got, want := PartitionFor([]byte("wu"), 10), int32(0); got != want {
		t.Errorf(`PartitionFor("wu", 10) = %d, want %d`, got, want)
	}
}

func TestPartitionForInRange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.SliceOf(rapid.Byte()).Draw(t, "key")
		n := rapid.IntRange(1, 1<<31-1).Draw(t, "n")
		if got := PartitionFor(key, n); got < 0 || int(got) >= n {
			t.Errorf("PartitionFor(%x, %d) = %d, out of range", key, n, got)
		}
	})
}

func TestPartitionForAllocates(t *testing.T) {
	key := []byte("user-1234")
	if got := testing.AllocsPerRun(100, func() { PartitionFor(key, 50) }); got != 0 {
		t.Errorf("%v allocations, want none", got)
	}
}
