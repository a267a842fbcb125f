package cli

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/pawlstream/pawl/internal/invariants"
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// A redrive whose process is killed at any step, and which is called again, has
// sent each letter exactly once.
func TestRedriveIsKilled(t *testing.T) {
	if !invariants.Enabled {
		t.Skip("crash points need the build tag invariants") // without it no crash point is compiled in; make test sets it
	}
	const letters, transactions = 230, 3 // of 100 each
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, point := range []string{"redrive-before", "produce-before", "produce-after", "endtxn-sent", "endtxn-replied", "redrive-after"} {
		t.Run(point, func(t *testing.T) {
			d := newDeadLetters(t)
			var recs []kafka.Record
			for i := range letters {
				recs = append(recs, d.letter("k", fmt.Sprint("v", i), "failed", "no"))
			}
			d.publish(recs...)
			// Each call comes one transaction further than the one before did.
			killed := 0
			for n := 1; ; n++ {
				if n > transactions+2 {
					t.Fatalf("%d calls were not enough", n)
				}
				cmd := exec.CommandContext(t.Context(), self, "dlq", "redrive", "--brokers", d.broker.Addr(), "--application", "shop", "--consumer", "mailer", "--all", "--yes")
				cmd.Env = append(os.Environ(), fmt.Sprintf("PAWL_CRASH=%s:%d", point, min(n, 2)))
				out, err := cmd.CombinedOutput()
				if err == nil {
					break
				}
				var exit *exec.ExitError
				if !errors.As(err, &exit) || exit.Exited() && exit.ExitCode() == exitUsage {
					t.Fatalf("call %d: %v\n%s", n, err, out)
				}
				killed++
			}
			if killed == 0 {
				t.Error("no call was killed: the test shows nothing")
			}
			times := make(map[string]int)
			r, err := kafka.NewReader(d.kafka, kafka.ReaderConfig{Committed: true})
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			r.Consume(topic.Bytes(testRedrive).Description, 0, 0)
			for read := 0; read < letters; {
				var batch kafka.Batch
				if err := r.Poll(t.Context(), 1000, &batch); err != nil {
					t.Fatal(err)
				}
				for _, e := range batch.Envelopes {
					times[string(e.Value)]++
				}
				read += len(batch.Envelopes)
			}
			for v, n := range times {
				if n != 1 {
					t.Errorf("%s was redriven %d times", v, n)
				}
			}
			if len(times) != letters {
				t.Errorf("%d letters were redriven, want %d", len(times), letters)
			}
			d.want(exitOK, "0 letters redriven, 0 failed, 0 left\n", "redrive", "--all", "--yes")
			if left := d.list(); len(left) != 0 {
				t.Errorf("%d letters are left", len(left))
			}
		})
	}
}
