package main

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestCurve(t *testing.T) {
	at := func(ms int, n int64, cpu time.Duration) sample {
		return sample{time.Unix(0, 0).Add(time.Duration(ms) * time.Millisecond), n, cpu}
	}
	c := curve{at(0, 0, 0), at(50, 0, 1*time.Second), at(100, 10, 2*time.Second), at(150, 50, 4*time.Second), at(200, 95, 5*time.Second), at(250, 100, 9*time.Second)}
	if got, want := c.seconds(), 0.2; got != want {
		t.Errorf("seconds = %v, want %v: from the last sample without messages", got, want)
	}
	if got, want := c.steady(), 45.0; got != want {
		t.Errorf("steady = %v messages a CPU second, want %v", got, want)
	}
	if got := (curve{at(0, 0, 0), at(50, 100, time.Second)}).steady(); got != 0 {
		t.Errorf("steady of a run without a middle = %v, want 0", got)
	}
}

// A run has time for what it is to do, on a slow machine too.
func TestThroughputTime(t *testing.T) {
	for messages, want := range map[int]time.Duration{0: 2 * time.Minute, 50_000: 130 * time.Second, 5_000_000: 1120 * time.Second} {
		if got := throughputTime(messages); got != want {
			t.Errorf("throughputTime(%d) = %v, want %v", messages, got, want)
		}
	}
}

func TestMedianAndNumbers(t *testing.T) {
	all := []figures{{peak: 3 << 20}, {peak: 1 << 20}, {peak: 2 << 20}}
	if got := median(all, peakMB); got != 2 {
		t.Errorf("median of 3, 1, 2 = %v, want 2", got)
	}
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 20_000_000: "20,000,000"} {
		if got := thousands(n); got != want {
			t.Errorf("thousands(%d) = %q, want %q", n, got, want)
		}
	}
}

// Each row has as many columns as its table's head.
func TestTables(t *testing.T) {
	f := figures{messages: 1000, seconds: 2, cpu: 1, broker: 1, peak: 1 << 30, steady: 900, outputs: 500, latency: &percentiles{1, 2, 3}}
	results := []result{}
	for _, w := range workloads {
		r := result{workload: w, streams: []figures{f, f}}
		for range w.pawl {
			r.pawl = append(r.pawl, []figures{f, f})
		}
		results = append(results, r)
	}
	var out strings.Builder
	if err := (bench{runs: 2, heap: "2g"}).print(&out, results); err != nil {
		t.Fatal(err)
	}
	columns, rows := 0, 0
	for line := range strings.Lines(out.String()) {
		n := strings.Count(line, "|")
		switch {
		case n == 0:
			columns = 0
		case columns == 0:
			columns = n
		case n != columns:
			t.Errorf("%q has %d columns, want %d", line, n-1, columns-1)
		default:
			rows++
		}
	}
	if want := 2 + 6 + 6; rows != want { // two rules, six rows of throughput, six of latency
		t.Errorf("%d rows, want %d:\n%s", rows, want, out.String())
	}
}

func TestChoose(t *testing.T) {
	all, err := choose("")
	if err != nil || len(all) != len(workloads)-1 || slices.ContainsFunc(all, func(w workload) bool { return w.extra }) {
		t.Errorf("choose all: %d workloads, %v; want all but the extra one", len(all), err)
	}
	two, err := choose("map,zipf")
	if err != nil || len(two) != 2 || two[0].name != "map" || two[1].name != "zipf" {
		t.Errorf("choose map,zipf: %v, %v", two, err)
	}
	if _, err := choose("map,nothing"); err == nil || !strings.Contains(err.Error(), `"nothing"`) {
		t.Errorf("choose nothing: %v, want an error that names it", err)
	}
}

func TestProperties(t *testing.T) {
	got := string(properties(map[string]string{"b": "a:b=c", "a": `x\y`}))
	if want := "a=x\\\\y\nb=a\\:b\\=c\n"; got != want {
		t.Errorf("properties = %q, want %q", got, want)
	}
}

func TestKeys(t *testing.T) {
	for _, n := range []int{0, 7, 999_999_999} {
		key := appendKey(nil, n)
		if got, err := keyNumber(key); err != nil || got != n || len(key) != 10 {
			t.Errorf("key %q: number %d, %v; want %d", key, got, err, n)
		}
	}
	for _, bad := range []string{"", "k12345678", "x123456789", "k12345678a"} {
		if got, err := keyNumber([]byte(bad)); err == nil {
			t.Errorf("keyNumber(%q) = %d: want an error", bad, got)
		}
	}
	small := input{keys: 5_000, once: true}
	next, seen := small.next(), make(map[int]bool)
	for range small.keys {
		seen[next()] = true
	}
	if len(seen) != small.keys {
		t.Errorf("%d different keys of %d", len(seen), small.keys)
	}
	// Every run sees the same messages.
	for _, in := range []input{uniform, few, zipf, once} {
		a, b := in.next(), in.next()
		for i := range 1000 {
			x, y := a(), b()
			if x != y || x < 0 || x >= in.keys {
				t.Fatalf("%s: message %d has the keys %d and %d of %d", in.name, i, x, y, in.keys)
			}
		}
	}
}

// A key that has a number is written by it.
func FuzzKeyNumber(f *testing.F) {
	f.Add([]byte("k000000001"))
	f.Add([]byte("k99999999x"))
	f.Fuzz(func(t *testing.T, key []byte) {
		if n, err := keyNumber(key); err == nil && string(appendKey(nil, n)) != string(key) {
			t.Errorf("keyNumber(%q) = %d, which is the key %q", key, n, appendKey(nil, n))
		}
	})
}
