package consumer

import (
	"slices"
	"testing"

	"github.com/pawlstream/pawl/topic"
)

// A topic is looked up once, however many descriptions of it there are, and again
// where the transaction that published to it first was aborted.
func TestOutputsByName(t *testing.T) {
	d := func(name string) *topic.Description { return topic.String(name).Description }
	var o outputs
	fresh := func(want ...string) {
		t.Helper()
		var got []string
		for _, d := range o.fresh {
			got = append(got, d.Name())
		}
		if !slices.Equal(got, want) {
			t.Errorf("to be looked up: %q, want %q", got, want)
		}
	}
	for range 3 {
		o.add(d("x"))
		o.add(d("y"))
	}
	fresh("x", "y")
	o.reset()
	fresh()
	o.add(d("y"))
	fresh("y")
	o.committed()
	o.reset()
	o.add(d("y"))
	o.add(d("x"))
	fresh("x")
}
