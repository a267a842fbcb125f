package kafka

import (
	"slices"
	"testing"
)

func TestLetterLapses(t *testing.T) {
	for _, tt := range []struct {
		ms, bytes string
		want      []string
	}{
		{"2592000000", "-1", nil},
		{"604800000", "-1", nil}, // Kafka's default
		{"604799999", "-1", []string{"retention.ms"}},
		{"0", "-1", []string{"retention.ms"}},
		{"-1", "-1", nil},
		{"-1", "0", []string{"retention.bytes"}},
		{"3600000", "1000", []string{"retention.ms", "retention.bytes"}},
		{"", "", nil},
		{"what", "ever", nil},
	} {
		var got []string
		for _, l := range LetterLapses(map[string]string{"retention.ms": tt.ms, "retention.bytes": tt.bytes}) {
			got = append(got, l.Setting)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("retention.ms=%s, retention.bytes=%s: %q, want %q", tt.ms, tt.bytes, got, tt.want)
		}
	}
}
