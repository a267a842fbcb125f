package pawl

import (
	"slices"
	"testing"
)

func TestDefaultMemory(t *testing.T) {
	const mib, gib = 1 << 20, 1 << 30
	for _, tt := range []struct {
		env    []string
		limits []memoryLimit
		want   int64
		why    string
	}{
		{nil, nil, 512 * mib, "enough for most"},
		{nil, []memoryLimit{{64 * gib, "the machine's memory"}}, 512 * mib, "enough for most"},
		{nil, []memoryLimit{{64 * gib, "the machine's memory"}, {1000 * mib, "the control group's limit"}}, 400 * mib, "two fifths of the control group's limit"},
		{nil, []memoryLimit{{100 * mib, "the control group's limit"}}, 64 * mib, "the least there can be"},
		{[]string{"GOMEMLIMIT=300MiB"}, []memoryLimit{{64 * gib, "the machine's memory"}}, 150 * mib, "half of GOMEMLIMIT"},
		{[]string{"GOMEMLIMIT=4GiB"}, nil, 512 * mib, "half of GOMEMLIMIT"},
		{[]string{"GOMEMLIMIT=off"}, nil, 512 * mib, "enough for most"},
		{[]string{"GOMEMLIMIT=off", "GOMEMLIMIT=209715200"}, nil, 100 * mib, "half of GOMEMLIMIT"},
	} {
		if got, why := defaultMemory(tt.env, tt.limits); got != tt.want || why != tt.why {
			t.Errorf("defaultMemory(%q, %v) = %d, %q, want %d, %q", tt.env, tt.limits, got, why, tt.want, tt.why)
		}
	}
}

func TestGroupFiles(t *testing.T) {
	for _, tt := range []struct {
		groups string
		want   []string
	}{
		{"0::/\n", []string{"/sys/fs/cgroup/memory.max"}},
		{"0::/a/b\n", []string{"/sys/fs/cgroup/a/b/memory.max", "/sys/fs/cgroup/a/memory.max", "/sys/fs/cgroup/memory.max"}},
		{"5:cpu:/x\n4:memory,hugetlb:/d\n", []string{"/sys/fs/cgroup/memory/d/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}},
		{"0::/../x\n", []string{"/sys/fs/cgroup/x/memory.max", "/sys/fs/cgroup/memory.max"}},
		{"", nil},
		{"nonsense", nil},
	} {
		if got := groupFiles([]byte(tt.groups)); !slices.Equal(got, tt.want) {
			t.Errorf("groupFiles(%q) = %q, want %q", tt.groups, got, tt.want)
		}
	}
}

func TestMachineMemory(t *testing.T) {
	if got, ok := machineMemory([]byte("MemTotal:       16384 kB\nMemFree: 1 kB\n")); !ok || got != 16<<20 {
		t.Errorf("16 MiB: %d, %v", got, ok)
	}
	if got, ok := machineMemory([]byte("nothing")); ok {
		t.Errorf("nothing: %d, want none", got)
	}
}
