package cli

import (
	"testing"

	"pgregory.net/rapid"
)

// In whatever order inputs and outputs are seen, a hop counts what is lost,
// what is surplus, and what names nothing.
func TestHop(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		there := rapid.SliceOfDistinct(rapid.Custom(anyPosition), func(p position) position { return p }).Draw(t, "inputs")
		named := rapid.SliceOf(rapid.Custom(anyPosition)).Draw(t, "outputs")

		type step struct {
			output bool
			at     position
		}
		var steps []step
		for _, p := range there {
			steps = append(steps, step{false, p}, step{false, p}) // reading one twice changes nothing
		}
		for _, p := range named {
			steps = append(steps, step{true, p})
		}
		h := newHop()
		for _, s := range rapid.Permutation(steps).Draw(t, "order") {
			if s.output {
				h.output(0, s.at)
			} else {
				h.input(s.at)
			}
		}

		times := make(map[position]int64)
		for _, p := range named {
			times[p]++
		}
		var lost, surplus int64
		for _, p := range there {
			if times[p] == 0 {
				lost++
			} else {
				surplus += times[p] - 1
			}
			delete(times, p)
		}
		strays := int64(0)
		for _, n := range times {
			strays += n
		}
		if h.inputs != int64(len(there)) || h.lost() != lost || h.surplus != surplus || h.strays() != strays {
			t.Fatalf("%d inputs, %d lost, %d surplus, %d strays; want %d, %d, %d, %d", h.inputs, h.lost(), h.surplus, h.strays(), len(there), lost, surplus, strays)
		}
		if got := h.skipped(); got > lost {
			t.Fatalf("%d skipped of %d lost", got, lost)
		}
	})
}

func anyPosition(t *rapid.T) position {
	return position{rapid.Int32Range(0, 2).Draw(t, "partition"), rapid.Int64Range(0, 9).Draw(t, "offset")}
}

// What is above the last output is not skipped: it is still to come.
func TestHopSkipped(t *testing.T) {
	h := newHop()
	for _, offset := range []int64{0, 1, 3, 4, 7} { // 2, 5 and 6 are markers
		h.input(position{0, offset})
	}
	for _, offset := range []int64{0, 3} {
		h.output(5, position{0, offset})
	}
	if got, want := h.skipped(), int64(1); got != want {
		t.Errorf("%d skipped, want %d: offset 1", got, want)
	}
	if got, want := h.lost(), int64(3); got != want {
		t.Errorf("%d lost, want %d", got, want)
	}
}

// An output that stands behind one of a later input of the same partition is
// out of order; one of another partition is not.
func TestHopDisorder(t *testing.T) {
	h := newHop()
	h.output(0, position{1, 5})
	h.output(0, position{2, 3})
	h.output(1, position{1, 4})
	h.output(0, position{1, 7})
	if h.disorder != 0 {
		t.Errorf("%d out of order, want 0", h.disorder)
	}
	h.output(0, position{1, 6})
	if h.disorder != 1 {
		t.Errorf("%d out of order, want 1", h.disorder)
	}
}
