package pawl

import (
	"bufio"
	"bytes"
	"fmt"
	"math"
	"os"
	"path"
	"strconv"
	"strings"
)

// What a program's budget is where none is set: two fifths of the memory that
// there is, since a program takes up to twice its budget and something must be
// left for stacks and the kernel; but no more than memoryMost, so that a
// program does not take a large machine for itself unless it is told to, and no
// less than a consumer makes do with.
const (
	memoryMost  = 512 << 20
	memoryLeast = 64 << 20
)

// memoryLimit is a bound of the memory that there is.
type memoryLimit struct {
	bytes int64
	what  string // in words
}

// defaultMemory returns the budget, and why.
func defaultMemory(env []string, limits []memoryLimit) (budget int64, why string) {
	budget, why = memoryMost, "enough for most"
	for _, v := range env {
		if text, ok := strings.CutPrefix(v, "GOMEMLIMIT="); ok {
			if n, ok := goMemory(text); ok {
				// Whoever sets the runtime's limit wants the program to stay within it.
				budget, why = min(budget, n/2), "half of GOMEMLIMIT"
			}
		}
	}
	for _, l := range limits {
		if share := l.bytes / 5 * 2; share < budget {
			budget, why = share, "two fifths of "+l.what
		}
	}
	if budget < memoryLeast {
		return memoryLeast, "the least there can be"
	}
	return budget >> 20 << 20, why
}

// goMemory reads a size as the runtime writes it, which is a number of bytes or
// one with a unit from B to TiB.
func goMemory(text string) (int64, bool) {
	units := []struct {
		suffix string
		shift  int
	}{{"TiB", 40}, {"GiB", 30}, {"MiB", 20}, {"KiB", 10}, {"B", 0}, {"", 0}}
	for _, u := range units {
		digits, ok := strings.CutSuffix(text, u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(digits, 10, 64)
		return n << u.shift, err == nil && n > 0 && n <= math.MaxInt64>>u.shift
	}
	return 0, false
}

// sizeText writes a size as a setting has it.
func sizeText(bytes int64) string {
	if bytes%(1<<20) == 0 {
		return fmt.Sprintf("%dMiB", bytes>>20)
	}
	return fmt.Sprintf("%dB", bytes)
}

// memoryLimits returns what bounds this process's memory, as far as the system
// says: its control groups, and the machine.
func memoryLimits() []memoryLimit {
	var limits []memoryLimit
	if text, err := os.ReadFile("/proc/meminfo"); err == nil {
		if n, ok := machineMemory(text); ok {
			limits = append(limits, memoryLimit{n, "the machine's memory"})
		}
	}
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return limits // another system, which has none
	}
	for _, file := range groupFiles(groups) {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // not mounted here, or the root, which has no limit
		}
		// Without a limit version 2 says max, and version 1 a number that is
		// beyond every machine.
		if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && n > 0 && n < 1<<60 {
			limits = append(limits, memoryLimit{n, "the control group's limit"})
		}
	}
	return limits
}

// machineMemory reads the line MemTotal of /proc/meminfo.
func machineMemory(meminfo []byte) (int64, bool) {
	lines := bufio.NewScanner(bytes.NewReader(meminfo))
	for lines.Scan() {
		var kib int64
		if _, err := fmt.Sscanf(lines.Text(), "MemTotal: %d kB", &kib); err == nil && kib > 0 && kib < 1<<50 {
			return kib << 10, true
		}
	}
	return 0, false
}

// groupFiles returns the files that may hold limits, by what /proc/self/cgroup
// says: those of the group and of all above it, whose limits bind as well. In a
// container the paths are often those of the host, and the files of its own
// group are at the top.
func groupFiles(groups []byte) []string {
	var files []string
	for line := range strings.Lines(string(groups)) {
		id, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, group, ok := strings.Cut(rest, ":")
		root, name := "/sys/fs/cgroup", "memory.max"
		switch {
		case !ok:
			continue
		case id == "0" && controllers == "":
		case strings.Contains(","+controllers+",", ",memory,"):
			root, name = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
		default:
			continue
		}
		for group = path.Clean("/" + group); ; group = path.Dir(group) {
			files = append(files, path.Join(root, group, name))
			if group == "/" {
				break
			}
		}
	}
	return files
}
