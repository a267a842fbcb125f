package main

import (
	"os"
	"strconv"
	"testing"
	"time"
)

func TestParseUsage(t *testing.T) {
	const status = "Name:\tjava\nVmPeak:\t  900 kB\nVmHWM:\t  1234 kB\nVmRSS:\t  99 kB\n"
	// A name may hold what separates the fields.
	for _, name := range []string{"(java)", "(a b) 1 (c)", "()) 7"} {
		stat := "17 (" + name + ") S 1 17 17 0 -1 4194304 100 0 0 0 250 75 0 0 20 0 30 0 12345 1 1"
		got, err := parseUsage(stat, status)
		if want := (usage{cpu: 3250 * time.Millisecond, peak: 1234 << 10}); err != nil || got != want {
			t.Errorf("parseUsage(%q) = %+v, %v; want %+v", stat, got, err, want)
		}
	}
	for _, bad := range [][2]string{{"", status}, {"17 (x) S 1 2", status}, {"17 (x) S 1 17 17 0 -1 4194304 100 0 0 0 a b 0 0", status}, {"17 (x) S 1 17 17 0 -1 4194304 100 0 0 0 1 1 0 0", "VmRSS: 1 kB\n"}} {
		if got, err := parseUsage(bad[0], bad[1]); err == nil {
			t.Errorf("parseUsage(%q, %q) = %+v: want an error", bad[0], bad[1], got)
		}
	}
}

func TestParseMachineCPU(t *testing.T) {
	got, err := parseMachineCPU("cpu  100 20 30 9999 8888 5 6 7 0 0\ncpu0 1 2 3\n")
	if want := 1680 * time.Millisecond; err != nil || got != want {
		t.Errorf("parseMachineCPU = %v, %v; want %v: neither idle nor waiting for disks is use", got, err, want)
	}
	if got, err := parseMachineCPU("intr 1 2 3"); err == nil {
		t.Errorf("parseMachineCPU of something else = %v: want an error", got)
	}
}

// What the kernel writes of this very process is understood.
func TestUsageOfThisProcess(t *testing.T) {
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("this system has no /proc") // the figures of a process are read there
	}
	u, err := usageOf(strconv.Itoa(os.Getpid()))
	if err != nil || u.peak < 1<<20 {
		t.Errorf("usageOf(this) = %+v, %v; want more than 1 MiB", u, err)
	}
}

func TestTail(t *testing.T) {
	var all tail
	for range 3 * tailBytes / 10 {
		if _, err := all.Write([]byte("123456789\n")); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := all.Write([]byte("the end")); err != nil {
		t.Fatal(err)
	}
	got := all.text()
	if len(got) != tailBytes || got[len(got)-7:] != "the end" {
		t.Errorf("the tail has %d bytes and ends with %q; want %d that end with what was written last", len(got), got[len(got)-7:], tailBytes)
	}
}
