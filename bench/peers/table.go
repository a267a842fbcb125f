package main

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
)

// result is all that a workload measured.
type result struct {
	workload workload
	streams  []figures
	pawl     [][]figures // of each variant
}

// print writes the tables and how they were made, as Markdown.
func (b bench) print(w io.Writer, results []result) error {
	var out bytes.Buffer
	var throughput, latency []result
	for _, r := range results {
		if r.workload.rate > 0 {
			latency = append(latency, r)
		} else {
			throughput = append(throughput, r)
		}
	}
	if len(throughput) > 0 {
		throughputTable(&out, throughput)
	}
	if len(latency) > 0 {
		latencyTable(&out, latency)
	}
	machine, err := machine()
	if err != nil {
		return err
	}
	runs := fmt.Sprintf("Medians of %d runs each, which took turns", b.runs)
	if b.runs == 1 {
		runs = "One run each"
	}
	fmt.Fprintf(&out, "\n%s. %s; other programs used at most %.2f cores meanwhile.\n\n", runs, machine, foreign(results))
	settingsList(&out, b.heap, results)
	if b.short {
		out.WriteString("\nThis was a short run: it says that everything works, and how a JVM starts.\n")
	}
	_, err = out.WriteTo(w)
	return err
}

// foreign returns how much others took of the machine in the run in which they
// took most: figures of a machine that was not quiet are worth less.
func foreign(results []result) float64 {
	most := 0.0
	for _, r := range results {
		for _, all := range append(r.pawl, r.streams) {
			for _, f := range all {
				most = max(most, f.foreign)
			}
		}
	}
	return most
}

func throughputTable(out *bytes.Buffer, results []result) {
	out.WriteString("| messages per second of client CPU | Kafka Streams: whole run / steady | Pawl: whole run / steady | ratio | messages/s | outputs a message | peak memory, MB |\n|---|--:|--:|--:|--:|--:|--:|\n")
	for _, r := range results {
		k := r.streams
		for i, v := range r.workload.pawl {
			p := r.pawl[i]
			fmt.Fprintf(out, "| %s, %s messages%s | %s / %s | %s / %s | **%.1f** / %s | %s, %s | %.2f, %.2f | %.0f, %.0f |\n",
				r.workload.title, thousands(r.workload.input.messages), v.note,
				perCPU(k), kilo(median(k, steady)), perCPU(p), kilo(median(p, steady)),
				median(p, figures.perCPU)/median(k, figures.perCPU), ratio(median(p, steady), median(k, steady)),
				kilo(median(k, rate)), kilo(median(p, rate)), median(k, emission), median(p, emission), median(k, peakMB), median(p, peakMB))
		}
	}
}

func latencyTable(out *bytes.Buffer, results []result) {
	if out.Len() > 0 {
		out.WriteString("\n")
	}
	out.WriteString("| from sending a message to a count that includes it, ms | p50 | p99 | p99.9 | client cores | broker cores | peak memory, MB |\n|---|--:|--:|--:|--:|--:|--:|\n")
	row := func(side string, r result, all []figures) {
		fmt.Fprintf(out, "| %s, %s messages/s: %s | %.1f | **%.1f** | %.1f | %.2f | %.2f | %.0f |\n", r.workload.title, thousands(r.workload.rate), side,
			median(all, func(f figures) float64 { return f.latency.p50 }), median(all, p99), median(all, func(f figures) float64 { return f.latency.p999 }),
			median(all, figures.cores), median(all, func(f figures) float64 { return f.broker / f.seconds }), median(all, peakMB))
	}
	for _, r := range results {
		row("Kafka Streams", r, r.streams)
		for i, v := range r.workload.pawl {
			row("Pawl"+v.note, r, r.pawl[i])
			fmt.Fprintf(out, "| its share of Kafka Streams' | | %.2f | | | | %.2f |\n",
				median(r.pawl[i], p99)/median(r.streams, p99), median(r.pawl[i], peakMB)/median(r.streams, peakMB))
		}
	}
}

func rate(f figures) float64     { return float64(f.messages) / f.seconds }
func steady(f figures) float64   { return f.steady }
func emission(f figures) float64 { return float64(f.outputs) / float64(f.messages) }
func peakMB(f figures) float64   { return float64(f.peak) / (1 << 20) }
func p99(f figures) float64      { return f.latency.p99 }

// median returns the middle of what the runs say, the lower one of two.
func median(all []figures, of func(figures) float64) float64 {
	var values []float64
	for _, f := range all {
		values = append(values, of(f))
	}
	slices.Sort(values)
	return values[(len(values)-1)/2]
}

// perCPU shows the median, and from where to where the runs went.
func perCPU(all []figures) string {
	s := kilo(median(all, figures.perCPU))
	if len(all) == 1 {
		return s
	}
	var values []float64
	for _, f := range all {
		values = append(values, f.perCPU())
	}
	return fmt.Sprintf("%s [%s–%s]", s, kilo(slices.Min(values)), kilo(slices.Max(values)))
}

// ratio writes how often b goes into a, or a dash where one of them is missing.
func ratio(a, b float64) string {
	if a == 0 || b == 0 {
		return "–"
	}
	return fmt.Sprintf("%.1f", a/b)
}

// kilo writes a number in thousands, and a figure that a run was too short for
// as a dash.
func kilo(v float64) string {
	if v == 0 {
		return "–"
	}
	return thousands(int(v/1000+0.5)) + "k"
}

// thousands writes a number with its thousands apart.
func thousands(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// settingsList says with what Kafka Streams ran.
func settingsList(out *bytes.Buffer, heap string, results []result) {
	fmt.Fprintf(out, "Kafka Streams ran with `exactly_once_v2`, %d threads and `-Xms%s -Xmx%[2]s`; beside that:\n\n", streamsThreads, heap)
	for _, r := range results {
		var all []string
		all = append(all, r.workload.streams.java...)
		for _, k := range slices.Sorted(maps.Keys(r.workload.streams.properties)) {
			all = append(all, k+"="+r.workload.streams.properties[k])
		}
		if len(all) == 0 {
			all = []string{"nothing"}
		}
		title := r.workload.title
		if r.workload.rate > 0 {
			title += fmt.Sprintf(", %s messages/s", thousands(r.workload.rate))
		}
		fmt.Fprintf(out, "* %s: `%s`\n", title, strings.Join(all, "`, `"))
	}
}

// machine says what all of it ran on.
func machine() (string, error) {
	cpu, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "", err
	}
	model := "unknown processor"
	for line := range strings.Lines(string(cpu)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			model = strings.TrimSpace(value)
		}
	}
	memory, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return "", err
	}
	kb := 0
	if _, err := fmt.Sscanf(string(memory), "MemTotal: %d kB", &kb); err != nil {
		return "", fmt.Errorf("/proc/meminfo: %w", err)
	}
	kernel, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return "", err
	}
	java, err := exec.Command("java", "-version").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("java -version: %w", err)
	}
	first, _, _ := strings.Cut(string(java), "\n")
	return fmt.Sprintf("Client, Apache Kafka and what measures them shared %d cores (%s, %d GB, Linux %s, %s, %s)",
		runtime.NumCPU(), model, (kb+(1<<19))>>20, strings.TrimSpace(string(kernel)), runtime.Version(), first), nil
}
