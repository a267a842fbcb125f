package messaging_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"
)

// body is a test that is written once and runs in every place.
type body struct {
	name       string
	partitions int
	run        func(s *stage)
}

// The suite is what every place must do that messages can be in: the in-process
// broker in virtual time, a real Kafka, and the embedded broker while it is killed.
// An account of what was committed and handed out is kept beside each body. What
// runs in virtual time alone is delays of minutes and clocks that are set, which
// no test waits for, and faults of single requests, which a real broker does not
// make to order.
var suite = []body{
	{"first acked last", 4, firstAckedLast},
	{"acks in any order", 2, acksInAnyOrder},
	{"half of a span settled", 1, halfOfASpanSettled},
	{"metadata overflow", 1, metadataOverflow},
	{"one stuck key", 1, oneStuckKey},
	{"in place, tier, dead letter", 2, inPlaceTierDeadLetter},
	{"key order", 2, keyOrder},
	{"key order and a crash", 2, keyOrderAndACrash},
	{"dead letters unwritable", 1, deadLettersUnwritable},
	{"one too large", 1, oneTooLarge},
	{"poison", 1, poison},
	{"bytes are kept", 1, bytesAreKept},
	{"late acks", 2, lateAcks},
	{"members come and go", 4, membersComeAndGo},
	{"join beside stuck handlers", 4, joinBesideStuckHandlers},
	{"stop beside stuck handlers", 2, stopBesideStuckHandlers},
	{"stop with a full channel", 1, stopWithFullChannel},
}

// alone is what arms crash points, which others would pass too.
var alone = []body{
	{"redrive exactly once", 1, redriveExactlyOnce},
}

// runSuite runs the bodies, so many of them beside each other.
func runSuite(t *testing.T, beside int, run func(t *testing.T, b body)) {
	for _, b := range alone {
		t.Run(b.name, func(t *testing.T) { run(t, b) })
	}
	var running sync.WaitGroup
	defer running.Wait()
	room := make(chan struct{}, beside)
	for _, b := range suite {
		room <- struct{}{}
		running.Go(func() {
			defer func() { <-room }()
			t.Run(b.name, func(t *testing.T) { run(t, b) })
		})
	}
}

func TestSuite(t *testing.T) { runSuite(t, 1, inVirtualTime) }

func TestSuiteOnKafka(t *testing.T) {
	if os.Getenv("PAWL_TEST_KAFKA") == "" {
		t.Skip("PAWL_TEST_KAFKA names no Kafka to test on") // make kafka-test starts one
	}
	runSuite(t, 3, onKafka)
}

// With the broker killed four times amid each body; as many rounds of twelve kills
// as an eighth of the time takes that PAWL_SOAK says, each with a new seed; or with
// that of PAWL_SEED.
func TestSuiteOnKilledBroker(t *testing.T) {
	seed, kills := uint64(1), 4
	again := func() bool { return false }
	if text := os.Getenv("PAWL_SOAK"); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil {
			t.Fatalf("PAWL_SOAK: %v", err)
		}
		seed, kills = rand.Uint64N(1_000_000_000), 12
		end := time.Now().Add(d / 8)
		again = func() bool { seed++; return time.Now().Before(end) && !t.Failed() }
	}
	if text := os.Getenv("PAWL_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("PAWL_SEED: %v", err)
		}
	}
	for more := true; more; more = again() {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			// They mostly wait, for the broker to come back.
			runSuite(t, 6, func(t *testing.T, b body) { onKilledBroker(t, seed, kills, b) })
		})
	}
}
