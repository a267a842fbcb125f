package kafka

import (
	"sync"
	"testing"
	"testing/synctest"

	"github.com/pawlstream/pawl/internal/devbroker"
	"github.com/twmb/franz-go/pkg/kerr"
)

// A Publish waits for its own records, and not for those of another, whose
// partition has no leader just now.
func TestPublishWaitsForItsOwn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		dev(t, func(e *env) {
			slow, quick := e.topic("slow", 1, nil), e.topic("quick", 1, nil)
			p, err := NewProducer(e.config())
			if err != nil {
				e.Fatal(err)
			}
			defer p.Close()
			for _, d := range []Record{to(slow, "a")[0], to(quick, "b")[0]} {
				if err := p.Publish(e.ctx, d); err != nil { // so that both are known
					e.Fatal(err)
				}
			}
			refused := make(chan struct{})
			once := sync.OnceFunc(func() { close(refused) })
			e.dev.OnRequest(func(_ string, key int16) {
				if key == keyProduce {
					once()
				}
			})
			defer e.dev.Fail(devbroker.Fault{Key: keyProduce, Code: kerr.NotLeaderForPartition.Code})()
			first := make(chan error, 1)
			go func() { first <- p.Publish(e.ctx, to(slow, "c")...) }()
			<-refused
			if err := p.Publish(e.ctx, to(quick, "d")...); err != nil {
				e.Fatal(err)
			}
			if virtual {
				synctest.Wait()
			}
			select {
			case err := <-first:
				e.Fatalf("the first had its answer, %v, when the second had", err)
			default:
			}
			if err := <-first; err != nil {
				e.Error(err)
			}
		})
	})
}
