package pawl

import (
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
)

// TuneGC keeps the garbage collector from running all the time over a small
// heap. Left to itself it runs each time that the heap has doubled, and a
// shard with few keys doubles a heap of 4 MB hundreds of times a second. With
// memory, the budget in bytes that consumer.Config.Memory also has, it runs
// when the heap reaches three eighths of the budget or four thirds of what is
// alive, whichever is more: what a busy shard has alive is mostly messages,
// which cost little to look through, and much memory to wait with. The memory
// limit is set to 11 eighths of the budget, above which the collector runs as
// often as it must: with what the databases hold, which is half of the budget
// and not the collector's, the process stays within twice.
//
// Where GOGC or GOMEMLIMIT is set in the environment, that one holds, and only
// the other is tuned. The function that is returned brings back what was
// before. [Main] calls TuneGC; a program that calls consumer.Run may.
func TuneGC(memory int64) (restore func()) {
	f := &gcFloor{bytes: uint64(memory / 8 * 3)}
	limit := debug.SetMemoryLimit(-1)
	if _, ok := os.LookupEnv("GOMEMLIMIT"); !ok {
		debug.SetMemoryLimit(memory / 8 * 11)
	}
	if _, ok := os.LookupEnv("GOGC"); !ok {
		f.begin()
	}
	return func() {
		f.end()
		debug.SetMemoryLimit(limit)
	}
}

// gcFloor keeps the size of the heap at which the collector runs at a number
// of bytes at least.
//
// The collector knows a ratio and no floor, so the ratio is set anew after
// each cycle, from what the cycle found alive. Cycles are told by an object
// that nothing refers to: its cleanup runs after the one that finds it dead,
// and makes the next. No goroutine waits, and a heap that is not collected
// costs nothing.
type gcFloor struct {
	bytes uint64

	mu struct {
		sync.Mutex
		on      bool
		percent int // what the ratio is now
		before  int // what it was at the beginning
	}
}

func (f *gcFloor) begin() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.on = true
	f.mu.before = debug.SetGCPercent(100)
	f.mu.percent = 100
	f.adjustLocked()
	f.arm()
}

func (f *gcFloor) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.on {
		f.mu.on = false
		debug.SetGCPercent(f.mu.before)
	}
}

// arm asks for a call of cycled after the next cycle.
func (f *gcFloor) arm() {
	// It holds a pointer, since the runtime puts small objects without
	// pointers together, and those die together.
	dies := new(*gcFloor)
	runtime.AddCleanup(dies, (*gcFloor).cycled, f)
}

func (f *gcFloor) cycled() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.on {
		f.adjustLocked()
		f.arm()
	}
}

// adjustLocked sets the ratio. One that is near enough stays, since setting it
// stops the world for some microseconds.
func (f *gcFloor) adjustLocked() {
	want := gcPercent(liveBytes(), f.bytes)
	if math.Abs(float64(want-f.mu.percent)) > 0.1*float64(f.mu.percent) || want == leastPercent && f.mu.percent != leastPercent {
		debug.SetGCPercent(want)
		f.mu.percent = want
	}
}

// leastPercent is the ratio of a heap that is larger than the floor.
const leastPercent = 33

// gcPercent returns the ratio with which the collector runs next at the floor,
// or, if that is more, at four thirds of what is alive.
func gcPercent(live, floor uint64) int {
	// Below 4 MiB the runtime takes 4 MiB times the ratio.
	live = max(live, 4<<20)
	if floor <= live {
		return leastPercent
	}
	return int(max((floor-live)*100/live, leastPercent))
}

// liveBytes returns what the last cycle found alive, counted as the runtime
// counts it for its ratio.
func liveBytes() uint64 {
	samples := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}, {Name: "/gc/scan/globals:bytes"}}
	metrics.Read(samples)
	var sum uint64
	for _, s := range samples {
		if s.Value.Kind() == metrics.KindUint64 {
			sum += s.Value.Uint64()
		}
	}
	return sum
}
