package messaging

import (
	"context"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pawlstream/pawl/cluster"
)

// The table of metrics in the documentation has each that is exported, with its
// labels and its help, and no other.
func TestMetricsAreDocumented(t *testing.T) {
	w, err := New(Config{Topic: "t", Application: "a", Cluster: cluster.Cluster{Brokers: []string{"127.0.0.1:9"}}}, func(context.Context, Delivery) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	descs := make(chan *prometheus.Desc)
	go func() {
		w.metrics.Describe(descs)
		close(descs)
	}()
	parts := regexp.MustCompile(`^Desc\{fqName: "([^"]+)", help: "([^"]+)", .*constLabels: .*, variableLabels: \{(.*)\}\}$`)
	var want []string
	for d := range descs {
		m := parts.FindStringSubmatch(d.String())
		if m == nil {
			t.Fatalf("the metric %s has no name, help and labels", d)
		}
		want = append(want, "| `"+m[1]+"` | "+strings.ReplaceAll(m[3], ",", ", ")+" | "+m[2]+" |")
	}
	slices.Sort(want)
	text, err := os.ReadFile("../docs/messaging.md")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "| `pawl_messaging_") {
			got = append(got, strings.TrimSuffix(line, "\n"))
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("docs/messaging.md has the metrics\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
