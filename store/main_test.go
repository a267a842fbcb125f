package store_test

import (
	"flag"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// Eviction and merges of runs show in long sequences only. A flag of the
	// command line comes after this and wins.
	if f := flag.Lookup("rapid.steps"); f != nil {
		if err := f.Value.Set("150"); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}
