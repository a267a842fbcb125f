package broker

import (
	"syscall"
	"time"
)

// openFiles is how many files this process may have open, by whom. Connections
// that took all of them would leave the storage without, which it can't go on
// after.
type openFiles struct {
	storage     int   // files of the storage
	connections int64 // from outside
}

// filesMax is how many files the storage keeps open at the most, and filesMin
// how many it needs.
const (
	filesMax = 4096
	filesMin = 64
)

// shareFiles shares out what the operating system allows the process. A quarter
// is for what else the process has, such as the databases of an application.
func shareFiles(limit uint64) openFiles {
	n := int64(min(limit, 1<<31))
	f := openFiles{storage: int(min(max(n/4, filesMin), filesMax))}
	f.connections = max(n-int64(f.storage)-n/4, 1)
	return f
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

// refuseEvery is how often the log says that connections are refused.
const refuseEvery = 10 * time.Second

// roomLocked says whether there is room for another connection, and if not,
// whether it is time to say so.
func (b *Broker) roomLocked(inside bool) (room, say bool) {
	room = int64(len(b.mu.connections)) < b.settings.number("max.connections") && (inside || b.mu.outside < b.files.connections)
	if room {
		return true, false
	}
	b.mu.refused++
	if say = time.Since(b.mu.refusedAt) >= refuseEvery; say {
		b.mu.refusedAt = time.Now()
	}
	return false, say
}
