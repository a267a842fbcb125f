package consumer

import (
	"maps"
	"testing"

	"pgregory.net/rapid"

	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// The backlog is compared with a list of messages, over random batches of two
// partitions with gaps, markers and batches that hold no message, while
// transactions commit and abort at random. After an abort everything is
// fetched again from where the backlog says.
func TestBacklogProperty(t *testing.T) {
	parts := []topic.Partition{{Topic: "a", Number: 3}, {Topic: "b", Number: 3}}
	descriptions := map[string]*topic.Description{"a": topic.String("a").Description, "b": topic.String("b").Description}
	rapid.Check(t, func(t *rapid.T) {
		start := map[topic.Partition]int64{parts[0]: 10, parts[1]: 0}
		b := newBacklog(start)
		fetched := maps.Clone(start) // where each partition's fetch stands
		var list []topic.Envelope    // from the first message of the open transaction on
		consumed := 0                // of those
		committed := maps.Clone(start)

		// at returns the position of p, before the nth message of the list.
		at := func(p topic.Partition, n int) int64 {
			for _, e := range list[n:] {
				if e.TopicName() == p.Topic {
					return e.Offset
				}
			}
			return fetched[p]
		}
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				batch := new(kafka.Fetched)
				for _, p := range parts {
					if rapid.Bool().Draw(t, "absent") {
						continue
					}
					part := kafka.PartBatch{Partition: p}
					var es []topic.Envelope
					for range rapid.IntRange(0, 4).Draw(t, "messages") {
						fetched[p] += int64(rapid.IntRange(0, 2).Draw(t, "gap"))
						e := topic.Envelope{Topic: descriptions[p.Topic], Partition: p.Number, Offset: fetched[p]}
						fetched[p]++
						es = append(es, e)
						list = append(list, e)
						part.Count++
					}
					fetched[p] += int64(rapid.IntRange(0, 2).Draw(t, "markers"))
					part.Next = fetched[p]
					batch.Parts = append(batch.Parts, kafka.FetchedPart{PartBatch: part, Messages: kafka.MessagesOf(descriptions[p.Topic], es...), Bytes: 10})
					batch.Count += part.Count
					batch.Bytes += 10
				}
				b.push(batch)
			},
			"consume": func(t *rapid.T) {
				if b.queued == 0 {
					return
				}
				msgs := b.peek(rapid.IntRange(1, 5).Draw(t, "n"))
				for i := range msgs.Len() {
					e := msgs.At(i)
					if want := list[consumed+i]; e.Offset != want.Offset || e.TopicName() != want.TopicName() {
						t.Fatalf("message %d is %s at %d, want %s at %d", i, e.TopicName(), e.Offset, want.TopicName(), want.Offset)
					}
				}
				n := rapid.IntRange(1, msgs.Len()).Draw(t, "of them")
				b.advance(n)
				consumed += n
				if b.last.Offset != list[consumed-1].Offset {
					t.Fatalf("last is at %d, want %d", b.last.Offset, list[consumed-1].Offset)
				}
			},
			"commit": func(t *rapid.T) {
				b.commit()
				list, consumed = list[consumed:], 0
				committed = maps.Clone(b.positions)
			},
			"abort": func(t *rapid.T) {
				for p, from := range b.rewind() {
					if from != committed[p] {
						t.Fatalf("%s is fetched again from %d, want %d", p, from, committed[p])
					}
					fetched[p] = from
				}
				list, consumed = nil, 0
			},
			"": func(t *rapid.T) {
				if b.bytes != 10*len(b.parts) {
					t.Fatalf("%d bytes in %d parts of 10", b.bytes, len(b.parts))
				}
				if b.queued > 0 && b.peek(1).Len() != 1 {
					t.Fatalf("%d messages are queued, and none can be seen", b.queued)
				}
				if b.queued != len(list)-consumed {
					t.Fatalf("%d queued, want %d", b.queued, len(list)-consumed)
				}
				for _, p := range parts {
					// A position may lag behind gaps, but never passes the next
					// message and never stays below the last one consumed.
					got := b.positions[p]
					if got > at(p, consumed) {
						t.Fatalf("position of %s is %d, and the message at %d is not consumed", p, got, at(p, consumed))
					}
					for _, e := range list[:consumed] {
						if e.TopicName() == p.Topic && got <= e.Offset {
							t.Fatalf("position of %s is %d, and the message at %d is consumed", p, got, e.Offset)
						}
					}
					if got < committed[p] {
						t.Fatalf("position of %s is %d, below the committed %d", p, got, committed[p])
					}
				}
				if b.queued == 0 {
					for _, p := range parts {
						if b.positions[p] != fetched[p] {
							t.Fatalf("everything is consumed, and the position of %s is %d, want %d", p, b.positions[p], fetched[p])
						}
					}
				}
			},
		})
	})
}
