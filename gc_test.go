package pawl

import (
	"os"
	"runtime"
	"runtime/debug"
	"testing"
)

func TestGCPercent(t *testing.T) {
	const MiB = 1 << 20
	for _, tt := range []struct {
		live, floor uint64
		want        int
	}{
		{64 * MiB, 256 * MiB, 300},
		{1 * MiB, 256 * MiB, 6300}, // and the runtime's least heap is 4 MiB times 63
		{0, 256 * MiB, 6300},
		{128 * MiB, 256 * MiB, 100},
		{127 * MiB, 256 * MiB, 101},
		{192 * MiB, 256 * MiB, 33},
		{191 * MiB, 256 * MiB, 34},
		{256 * MiB, 256 * MiB, 33},
		{1 << 40, 256 * MiB, 33}, // never below four thirds of what is alive
		{1 * MiB, 0, 33},
		{1 * MiB, 8 * MiB, 100},
	} {
		got := gcPercent(tt.live, tt.floor)
		if got != tt.want {
			t.Errorf("gcPercent(%d MiB, %d MiB) = %d, want %d", tt.live/MiB, tt.floor/MiB, got, tt.want)
		}
	}
}

var sink []byte

// cycles returns how often the collector runs while so many bytes of garbage
// are made, a little at a time.
func cycles(bytes int) int {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range bytes / 4096 {
		sink = make([]byte, 4096)
	}
	runtime.ReadMemStats(&after)
	return int(after.NumGC - before.NumGC)
}

// A small heap is collected when it reaches the floor, also after it has been
// a large one. Once the tuning ends all is as before.
func TestTuneGC(t *testing.T) {
	for _, name := range []string{"GOGC", "GOMEMLIMIT"} {
		if _, ok := os.LookupEnv(name); ok {
			t.Setenv(name, "") // for it to come back
			os.Unsetenv(name)
		}
	}
	const memory, garbage = 64 << 20, 240 << 20 // ten times the floor
	limit := debug.SetMemoryLimit(-1)
	runtime.GC()
	restore := TuneGC(memory)
	if got := debug.SetMemoryLimit(-1); got != memory/8*11 {
		t.Errorf("memory limit %d, want %d", got, memory/8*11)
	}
	during := cycles(garbage)
	if during < 5 || during > 20 {
		t.Errorf("%d cycles for %d MiB of garbage with a floor of 24 MiB, want about 10", during, garbage>>20)
	}

	large := make([]*[1 << 20]byte, 60) // more than the floor stays alive
	for i := range large {
		large[i] = new([1 << 20]byte)
	}
	runtime.GC()
	runtime.KeepAlive(large)
	large = nil
	runtime.GC()
	runtime.GC()
	if again := cycles(garbage); again < 5 || again > 20 {
		t.Errorf("%d cycles after the heap was large, want about 10", again)
	}

	restore()
	if got := debug.SetMemoryLimit(-1); got != limit {
		t.Errorf("memory limit %d after the end, want %d", got, limit)
	}
	if got := debug.SetGCPercent(123); got != 100 {
		t.Errorf("GOGC %d after the end, want 100", got)
	}
	runtime.GC()
	runtime.GC() // whatever the first has found dead is done with
	if got := debug.SetGCPercent(100); got != 123 {
		t.Errorf("GOGC was set to %d after the end, want it left alone", got)
	}
}

// What the environment says about the collector holds.
func TestTuneGCLeavesEnvironment(t *testing.T) {
	t.Setenv("GOGC", "100")
	t.Setenv("GOMEMLIMIT", "off")
	limit := debug.SetMemoryLimit(-1)
	restore := TuneGC(128 << 20)
	if got := debug.SetMemoryLimit(-1); got != limit {
		t.Errorf("memory limit %d, want %d as before", got, limit)
	}
	if got := debug.SetGCPercent(100); got != 100 {
		t.Errorf("GOGC %d, want 100 as before", got)
	}
	restore()
	if got := debug.SetMemoryLimit(-1); got != limit {
		t.Errorf("memory limit %d after the end, want %d", got, limit)
	}
}

// BenchmarkSmallHeap shows what a floor is worth to a process that keeps
// little and makes much garbage.
func BenchmarkSmallHeap(b *testing.B) {
	for _, tuned := range []bool{false, true} {
		name := "untuned"
		if tuned {
			name = "tuned"
		}
		b.Run(name, func(b *testing.B) {
			if tuned {
				defer TuneGC(512 << 20)()
			}
			live := make(map[int]*[64]byte)
			for i := range 1000 {
				live[i] = new([64]byte)
			}
			for i := 0; b.Loop(); i++ {
				sink = make([]byte, 512)
				live[i%1000] = new([64]byte)
			}
			runtime.KeepAlive(live)
		})
	}
}
