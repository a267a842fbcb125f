package kafka

import (
	"context"
	"fmt"
	"strconv"
	"sync"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// limits knows how large a batch each topic takes, so that neither a batch of
// many records is refused for its size nor a record that the topic would take
// is refused here.
type limits struct {
	most int // the most that a batch may have whatever the topic takes; 0: no bound of ours
	mu   struct {
		sync.Mutex
		topics map[string]int // 0 for a topic that will not say
	}
}

// defaultLimit holds for a topic that will not say what it takes: the
// smaller of the defaults that brokers and clients of Kafka have had.
const defaultLimit = 1000012

// clientLimitMax keeps a produce request below what brokers take as one.
const clientLimitMax = 64 << 20

// largest is how large a batch of the topic may be.
func (l *limits) largest(name string) int {
	n := l.of(name)
	if n == 0 {
		n = defaultLimit
	}
	if l.most > 0 {
		n = min(n, l.most)
	}
	return min(n, clientLimitMax)
}

// batch is what the library asks for the largest batch of a topic. It counts
// four bytes that are not in the batch, and takes nothing below 512.
func (l *limits) batch(name string) int32 {
	return int32(max(512, min(l.largest(name)+4, clientLimitMax)))
}

// of returns what the topic takes, or 0.
func (l *limits) of(name string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.topics[name]
}

// unknown returns the topics of the records that were not asked yet.
func (l *limits) unknown(recs []Record) (names []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := ""
	for i := range recs {
		if name := recs[i].Topic; name != last {
			last = name
			if _, ok := l.mu.topics[name]; !ok {
				l.mu.topics[name] = 0 // named once
				names = append(names, name)
			}
		}
	}
	for _, name := range names {
		delete(l.mu.topics, name)
	}
	return names
}

// forget has topics asked again.
func (l *limits) forget(names ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, name := range names {
		delete(l.mu.topics, name)
	}
}

// learn asks the topics what they take. One that is unknown or may not be
// asked has no limit here; producing to it will say what is wrong.
func (l *limits) learn(ctx context.Context, cl *kgo.Client, names ...string) error {
	if len(names) == 0 {
		return nil
	}
	req := kmsg.NewPtrDescribeConfigsRequest()
	for _, name := range names {
		r := kmsg.NewDescribeConfigsRequestResource()
		r.ResourceType = kmsg.ConfigResourceTypeTopic
		r.ResourceName = name
		r.ConfigNames = []string{"max.message.bytes"}
		req.Resources = append(req.Resources, r)
	}
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return fmt.Errorf("ask topics %q for max.message.bytes: %w", names, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range resp.Resources {
		if err := kerr.ErrorForCode(r.ErrorCode); err != nil {
			if !isUnknownTopic(err) { // an unknown one is asked again when it is there
				l.mu.topics[r.ResourceName] = 0
			}
			continue
		}
		for _, c := range r.Configs {
			if c.Name != "max.message.bytes" || c.Value == nil {
				continue
			}
			n, err := strconv.Atoi(*c.Value)
			if err != nil {
				return fmt.Errorf("topic %s has max.message.bytes %q: %w", r.ResourceName, *c.Value, err)
			}
			l.mu.topics[r.ResourceName] = n
		}
	}
	return nil
}
