package broker

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A transaction that nobody ends is aborted after its timeout also when the clock
// was set back meanwhile: it does not hide what comes after it for as long.
func TestTransactionTimesOutAfterTheClockIsSetBack(t *testing.T) {
	k := start(t, quiet())
	k.create("t", 1)
	cl := k.client(kgo.TransactionalID("x"), kgo.TransactionTimeout(10*time.Second))
	if err := cl.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := cl.ProduceSync(k.ctx, &kgo.Record{Topic: "t", Value: []byte("open")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	open := func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		return k.mu.transactions["x"].state == stateOngoing
	}
	back := now() - (5 * time.Hour).Milliseconds()
	for _, tt := range []struct {
		after time.Duration
		want  bool
	}{{0, true}, {9 * time.Second, true}, {11 * time.Second, false}} {
		k.timeOut(back + tt.after.Milliseconds())
		if got := open(); got != tt.want {
			t.Errorf("%v after the clock was set back by five hours: open %v, want %v", tt.after, got, tt.want)
		}
	}
}
