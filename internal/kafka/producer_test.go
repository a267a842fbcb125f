package kafka

import (
	"errors"
	"strings"
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

// A topic that is deleted and made again is published to by who has published to
// the one before: who comes first is told that it is gone.
func TestPublishToTopicMadeAnew(t *testing.T) {
	brokers(t, func(e *env) {
		d := e.topic("again", 1, nil)
		p, err := NewProducer(e.config())
		if err != nil {
			e.Fatal(err)
		}
		defer p.Close()
		if err := p.Publish(e.ctx, to(d, "before")...); err != nil {
			e.Fatal(err)
		}
		for range 2 {
			if err := e.admin().DeleteTopics(e.ctx, d.Name()); err != nil {
				e.Fatal(err)
			}
			if err := p.Publish(e.ctx, to(d, "lost")...); !errors.Is(err, ErrUnknownTopic) {
				e.Errorf("published to a topic that is gone: %v, want %v", err, ErrUnknownTopic)
			}
			e.topic("again", 1, map[string]string{"max.message.bytes": "2000"})
			tries := 0
			for err = errors.New("not yet"); err != nil && tries < 10; tries++ {
				if err = p.Publish(e.ctx, to(d, "after")...); err != nil && !errors.Is(err, ErrUnknownTopic) {
					e.Fatal(err)
				}
			}
			if err != nil {
				e.Errorf("published to the topic that was made anew %d times: %v", tries, err)
			}
			if err := p.Publish(e.ctx, to(d, strings.Repeat("x", 3000))...); !errors.Is(err, ErrTooLarge) {
				e.Errorf("more than the topic takes now: %v, want %v", err, ErrTooLarge)
			}
		}
	})
}
