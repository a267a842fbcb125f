package store

import (
	"sync"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
)

// A Budget is the memory that the databases of one process share: one cache of
// blocks, out of which the memtables of all are reserved. Blocks keep at least
// twice what the memtables take: with less, each read of an absent key fetches
// its filters from disk again, which costs three times as much.
type Budget struct {
	cache *pebble.Cache
	bytes int64

	mu struct {
		sync.Mutex
		expected  int   // how many databases are to share the budget
		open      int   // how many do
		memtables int64 // what they may take together
	}
}

const (
	budgetDefault  = 64 << 20
	budgetExpected = 8 // databases that an unasked budget leaves room for

	// A database has this many memtables at most: one that is written to and
	// one on its way to disk.
	memTables = 2
)

// NewBudget makes a budget of so many bytes. Close gives them back.
func NewBudget(bytes int64) *Budget {
	b := &Budget{cache: pebble.NewCache(bytes), bytes: bytes}
	b.mu.expected = budgetExpected
	return b
}

// Expect says how many databases will share the budget, so that the first ones
// leave room for the last.
func (b *Budget) Expect(databases int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.expected = max(databases, 1)
}

// Close releases the cache once no database uses it any more.
func (b *Budget) Close() { b.cache.Unref() }

// filesMax is how many files a database keeps open at the most.
const filesMax = 1000

// files is how many files one of the databases keeps open: an even share of half
// of what the process may have. More would leave nothing for connections, and for
// the other databases, which then wait for ever.
func (b *Budget) files() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return shareOfFiles(openFilesLimit(), max(b.mu.expected, b.mu.open))
}

func shareOfFiles(limit uint64, databases int) int {
	return int(min(limit/2/uint64(databases), filesMax))
}

// openFilesLimit asks the operating system. The runtime has raised the limit as
// far as it may be raised.
func openFilesLimit() uint64 {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return 1024 // what systems have had for long
	}
	return uint64(l.Cur)
}

// take grants one more database memtables of at most so many bytes each: an
// even share of a third of the budget. What has no room is granted the floor
// all the same, and called tight: the databases that a process takes over from
// one that died must open, and are slow rather than not there.
func (b *Budget) take(want int64) (size int64, tight bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	third := b.bytes / 3
	share := third / int64(max(b.mu.expected, b.mu.open+1)) / memTables
	size = min(want, share, (third-b.mu.memtables)/memTables)
	if size < memTableFloor {
		size, tight = memTableFloor, true
	}
	b.mu.open++
	b.mu.memtables += memTables * size
	return size, tight
}

func (b *Budget) giveBack(size int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.open--
	b.mu.memtables -= memTables * size
}
