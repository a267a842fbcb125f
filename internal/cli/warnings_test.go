package cli

import (
	"bytes"
	"errors"
	"testing"
)

// What a command goes on in spite of stands beside its errors, in their form, and
// not as a line of a log.
func TestWarningsAreLinesForPeople(t *testing.T) {
	var out bytes.Buffer
	log := warnings(&out)
	log.Info("this is nobody's concern")
	for range 3 { // a client that tries again and again
		log.Warn("unable to open connection to broker", "addr", "kafka-1:9092", "err", errors.New("connection \x1b[31mrefused"))
	}
	log.With("topic", "orders").WithGroup("left").Error("go on", "partitions", 3)
	want := `pawl: unable to open connection to broker: connection \x1b[31mrefused (addr kafka-1:9092)
pawl: go on (left.topic orders, left.partitions 3)
`
	if got := out.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}
