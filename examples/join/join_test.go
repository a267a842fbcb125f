package join

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/consumertest"
	"github.com/pawlstream/pawl/topic"
)

// An order goes out with its customer, whichever of them comes first; one whose
// customer never comes goes out in the end, without.
func TestJoiner(t *testing.T) {
	s := consumertest.NewShard(t, Joiner{})
	s.Consume(customers, "", Customer{"c1", "Ada"})
	s.Consume(orders, "", Order{"o1", "c1", 100})
	s.Consume(orders, "", Order{"o2", "c2", 200}) // too early
	s.Consume(orders, "", Order{"o3", "c3", 300}) // whose customer never comes
	s.Consume(orders, "", Order{"o4", "c22", 400})
	s.Consume(customers, "", Customer{"c2", "Bob"})
	s.Consume(customers, "", Customer{"c1", "Ada L."})
	s.Consume(orders, "", Order{"o5", "c1", 500})
	s.Advance(patience - time.Minute)
	want := []Enriched{{Order{"o1", "c1", 100}, "Ada"}, {Order{"o2", "c2", 200}, "Bob"}, {Order{"o5", "c1", 500}, "Ada L."}}
	if got := consumertest.Published(s, enriched); !slices.Equal(got, want) {
		t.Errorf("in good time\n%+v, want\n%+v", got, want)
	}
	s.Advance(2 * time.Minute)
	want = append(want, Enriched{Order{"o3", "c3", 300}, ""}, Enriched{Order{"o4", "c22", 400}, ""})
	got := consumertest.Published(s, enriched)
	slices.SortFunc(got[min(3, len(got)):], func(x, y Enriched) int { return strings.Compare(x.ID, y.ID) }) // due in the same millisecond
	if !slices.Equal(got, want) {
		t.Errorf("at last\n%+v, want\n%+v", got, want)
	}
}

// A customer that is gone is known no more.
func TestCustomerThatIsGone(t *testing.T) {
	s := consumertest.NewShard(t, Joiner{})
	s.Consume(customers, "", Customer{"c1", "Ada"})
	if err := s.ConsumeEnvelope(topic.Envelope{Topic: customers.Description, Key: []byte("c1")}); err != nil {
		t.Fatal(err)
	}
	s.Consume(orders, "", Order{"o1", "c1", 100})
	s.Advance(2 * time.Hour)
	if got, want := consumertest.Published(s, enriched), []Enriched{{Order{"o1", "c1", 100}, ""}}; !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// Both sides come in any order, over four partitions, while processes crash and
// take over: every order goes out once, with its customer if there is one.
func TestJoinerSurvivesCrashes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const seed = 11
		rng := rand.New(rand.NewPCG(seed, 1))
		c := consumertest.Start(t, Joiner{}, consumer.Config{CreateTopics: 4, CommitInterval: 10 * time.Millisecond, SessionTimeout: 6 * time.Second})
		want := make(map[string]string)
		type step func()
		var steps []step
		for i := range 40 {
			customer := fmt.Sprintf("c%d", i)
			name := ""
			if i%4 > 0 {
				name = "name of " + customer
				steps = append(steps, func() { consumertest.Publish(c, customers, Customer{customer, name}) })
			}
			for j := range 5 {
				o := Order{fmt.Sprintf("o%d-%d", i, j), customer, int64(j)}
				want[o.ID] = name
				steps = append(steps, func() { consumertest.Publish(c, orders, o) })
			}
		}
		rng.Shuffle(len(steps), func(i, j int) { steps[i], steps[j] = steps[j], steps[i] })
		for i, do := range steps {
			do()
			if i%40 == 39 {
				c.Advance(time.Duration(rng.IntN(60)) * time.Millisecond)
				if i%80 == 79 {
					c.StartProcess(fmt.Sprintf("q%d", i))
				}
				c.Crash("p1")
				c.Restart("p1")
			}
		}
		c.Settle()
		c.Advance(patience / 2)
		c.Crash("p1")
		c.Restart("p1")
		c.Settle()
		c.Advance(patience)
		c.Settle()
		got := make(map[string]string)
		for _, e := range consumertest.Committed(c, enriched) {
			if _, twice := got[e.ID]; twice {
				t.Errorf("order %s went out twice (seed %d)", e.ID, seed)
			}
			got[e.ID] = e.Name
		}
		for id, name := range want {
			if n, ok := got[id]; !ok || n != name {
				t.Errorf("order %s went out with %q, %v, want %q (seed %d)", id, n, ok, name, seed)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%d orders went out, want %d (seed %d)", len(got), len(want), seed)
		}
	})
}

// Topics of a set that do not have the same number of partitions can't be joined:
// the program says so at its start.
func TestPartitionsDiffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := consumertest.NewCluster(t)
		c.CreateTopic(customers, 4)
		c.CreateTopic(orders, 3)
		c.StartApp("p1", consumer.Config{}, Joiner{})
		want := "topics of the co-partitioned set shop differ"
		if err := c.Wait("p1"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("it ends with %v, want %q", err, want)
		}
	})
}
