package kafka

import (
	"slices"
	"testing"

	"github.com/pawlstream/pawl/topic"
)

func TestCommit(t *testing.T) {
	brokers(t, func(e *env) {
		out, log := e.topic("out", 3, nil), e.topic("log", 1, nil)
		s := e.session("a")
		for i := range 3 {
			res, err := s.Commit(e.ctx, []Record{
				{Topic: out.Name(), Partition: -1, Key: []byte("k"), Value: []byte{byte('a' + i)}},
				{Topic: out.Name(), Partition: -1, Key: []byte("k"), Value: []byte{byte('A' + i)}},
				{Topic: log.Name(), Partition: 0, Value: []byte("offsets")},
			})
			if err != nil {
				t.Fatalf("commit %d: %v", i, err)
			}
			part := topic.Partition{Topic: out.Name(), Number: topic.PartitionFor([]byte("k"), 3)}
			if got, want := res.Next[part], int64(3*i+2); got != want {
				t.Errorf("commit %d reached %d in %s, want %d (%v)", i, got, part, want, res.Next)
			}
		}
		if got, want := e.committed(out, topic.PartitionFor([]byte("k"), 3)), []string{"a", "A", "b", "B", "c", "C"}; !slices.Equal(got, want) {
			t.Errorf("committed %q, want %q", got, want)
		}
	})
}
