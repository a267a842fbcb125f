package pawl

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// Every field of a worker's configuration is a setting, but for those that the
// program itself fills in and those that are for programs of other forms.
func TestWorkSettingsAreWhole(t *testing.T) {
	var s workSettings
	if err := s.load(Options{Name: "x", Env: []string{"HOME=/home/x"}}); err != nil {
		t.Fatal(err)
	}
	ours := []string{"Cluster", "Topic", "Logger", "Registerer", "TracerProvider", "DeadLetters", "Breaker", "Retry"} // filled by the program, or looked at below
	zero := []string{"Consumer", "Instance", "Start", "RateLimit", "HandlerTimeout"}                // zero is their default
	batch := []string{"BatchMax"}                                                                   // for a handler of batches
	v := reflect.ValueOf(s.Config)
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		if v.Field(i).IsZero() && !slices.Contains(slices.Concat(ours, zero, batch), name) {
			t.Errorf("Config.%s has no setting with a default", name)
		}
	}
	if got, want := s.Retry.Tiers, []time.Duration{10 * time.Second, time.Minute, 10 * time.Minute}; !slices.Equal(got, want) {
		t.Errorf("delays are %v, want %v", got, want)
	}
	names := make(map[string]bool)
	for _, setting := range s.table() {
		if names[setting.Name] {
			t.Errorf("two settings are named %s", setting.Name)
		}
		names[setting.Name] = true
		if setting.Help == "" || strings.HasSuffix(setting.Help, ".") {
			t.Errorf("help of --%s is %q, want a sentence without its full stop", setting.Name, setting.Help)
		}
	}
	s = workSettings{}
	if err := s.load(Options{Name: "x", Args: []string{"--retry-delays=none"}, Env: []string{"HOME=/home/x"}}); err != nil || s.Retry.Tiers == nil || len(s.Retry.Tiers) != 0 {
		t.Errorf("--retry-delays=none: %v, %v, want no delays", s.Retry.Tiers, err)
	}
}
