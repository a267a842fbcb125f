package config

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pawlstream/pawl/cluster"
)

func TestBytes(t *testing.T) {
	for text, want := range map[string]int64{
		"1B": 1, "1048576B": 1 << 20, "512MiB": 512 << 20, "512 MiB": 512 << 20, "512mib": 512 << 20, "1.5GiB": 3 << 29,
		"64K": 64 << 10, "64KB": 64_000, "2GB": 2e9, "10b": 10, "9223372036854775807B": 1<<63 - 1, "0.5KiB": 512,
	} {
		var got int64
		if err := Bytes(&got).Set(text); err != nil || got != want {
			t.Errorf("Bytes %q: %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "MiB", "1.2.3", "1e3", "0x10", "5 parsecs", "-5", "9223372036854775808", "9223372036854775808B", "8388608TiB", "0.0001", "0.0001B", ".", ".B", "0", "0B", "1048576"} {
		got := int64(42)
		if err := Bytes(&got).Set(text); err == nil || got != 42 {
			t.Errorf("Bytes %q: %d, %v, want an error and the value left alone", text, got, err)
		}
	}
}

// A mechanism is taken in any case, and kept and shown in that of its standard.
func TestMechanismInAnyCase(t *testing.T) {
	for _, text := range []string{"scram-sha-256", "Scram-SHA-256", "SCRAM-SHA-256"} {
		var c cluster.Cluster
		l, err := Read(ClusterSettings(&c, new(TLSFiles)), Input{Args: []string{"--print-config", "--sasl-mechanism=" + text}})
		if err != nil || c.SASL.Mechanism != cluster.ScramSHA256 {
			t.Errorf("%s is read as %q, %v", text, c.SASL.Mechanism, err)
			continue
		}
		for _, format := range []string{"yaml", "json"} {
			var b strings.Builder
			if err := l.Print(&b, format); err != nil || !strings.Contains(b.String(), cluster.ScramSHA256) {
				t.Errorf("%s is shown as %s, %v", text, b.String(), err)
			}
		}
	}
	var c cluster.Cluster
	_, err := Read(ClusterSettings(&c, new(TLSFiles)), Input{Args: []string{"--sasl-mechanism=scram"}})
	if want := `--sasl-mechanism "scram": want PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER`; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// Whatever Go prints of a duration is read as that duration.
func TestDurationRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := time.Duration(rapid.Int64Range(1, 1<<62).Draw(t, "ns"))
		var got time.Duration
		if err := Duration(&got).Set(want.String()); err != nil || got != want {
			t.Fatalf("Duration %v: %v, %v", want, got, err)
		}
	})
}

func TestSuggest(t *testing.T) {
	known := []string{"--drain", "--brokers", "--backoff-min", "--backoff-max"}
	for name, want := range map[string]string{
		"--drian": "--drain", "--drains": "--drain", "--darin": "--drain", "--broker": "--brokers", "--bootstrap-servers": "",
		"--backoff_max": "--backoff-max", "--x": "", "--commit": "",
	} {
		if want != "" {
			want = fmt.Sprintf(": did you mean %s?", want)
		}
		if got := Suggest(name, known); got != want {
			t.Errorf("Suggest(%q) = %q, want %q", name, got, want)
		}
	}
}

// edits is a distance.
func TestEdits(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "abc", 3}, {"abc", "abc", 0}, {"abc", "acb", 1}, {"abc", "abd", 1}, {"abc", "ab", 1}, {"abcd", "badc", 2}, {"kitten", "sitting", 3}} {
		if got := edits(tt.a, tt.b); got != tt.want {
			t.Errorf("edits(%q, %q) = %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
	text := rapid.StringMatching(`[ab-]{0,8}`)
	rapid.Check(t, func(t *rapid.T) {
		a, b := text.Draw(t, "a"), text.Draw(t, "b")
		d := edits(a, b)
		if back := edits(b, a); back != d {
			t.Fatalf("edits(%q, %q) = %d, and back %d", a, b, d, back)
		}
		if (d == 0) != (a == b) || d > max(len(a), len(b)) {
			t.Fatalf("edits(%q, %q) = %d", a, b, d)
		}
	})
}
