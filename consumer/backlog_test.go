package consumer

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"testing"

	"pgregory.net/rapid"

	"github.com/pawlstream/pawl/internal/changelog"
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

// I8: what is queued is bounded in bytes too: from the limit on nothing more is
// asked for, unless nothing is left to consume.
func TestI8BacklogIsBoundedInBytes(t *testing.T) {
	d, p := topic.String("in").Description, topic.Partition{Topic: "in"}
	r := &incarnation{handle: &handle{ctx: t.Context()}}
	r.requests, r.inputLimit = make(chan context.Context, 1), 100
	r.backlog = newBacklog(map[topic.Partition]int64{p: 0})
	next := int64(0)
	push := func(bytes int) {
		e := topic.Envelope{Topic: d, Offset: next}
		next++
		part := kafka.FetchedPart{PartBatch: kafka.PartBatch{Partition: p, Next: next, Count: 1}, Messages: kafka.MessagesOf(d, e), Bytes: bytes}
		r.backlog.push(&kafka.Fetched{Parts: []kafka.FetchedPart{part}, Count: 1, Bytes: bytes})
	}
	asks := func() bool {
		r.fetch()
		if !r.fetching {
			return false
		}
		<-r.requests
		r.cancelFetch()
		r.fetching = false
		return true
	}
	push(99)
	if !asks() {
		t.Error("nothing more is asked for with 99 bytes queued and a limit of 100")
	}
	push(1)
	if asks() {
		t.Error("more is asked for with 100 bytes queued and a limit of 100")
	}
	r.backlog.advance(1)
	if !asks() {
		t.Errorf("nothing more is asked for once a message is consumed: %d bytes are held, and %d messages queued", r.backlog.bytes, r.backlog.queued)
	}
	push(1000)
	for r.backlog.queued > 0 {
		r.backlog.advance(1)
	}
	if !asks() {
		t.Error("nothing more is asked for when all is consumed")
	}
}

// A partition that has lost its end is gone back in only where nothing of it is
// held: what came before the loss would be consumed first, and committed over
// what takes its offsets.
func TestLostEndWithMessagesHeld(t *testing.T) {
	d := topic.String("in").Description
	p, other := topic.Partition{Topic: "in"}, topic.Partition{Topic: "other"}
	part := func(p topic.Partition, from, to int64) (f kafka.FetchedPart) {
		var es []topic.Envelope
		for at := from; at < to; at++ {
			es = append(es, topic.Envelope{Topic: d, Offset: at})
		}
		f.PartBatch = kafka.PartBatch{Partition: p, Next: to, Count: len(es)}
		f.Messages = kafka.MessagesOf(d, es...)
		return f
	}
	markers := kafka.FetchedPart{PartBatch: kafka.PartBatch{Partition: p, Next: 60}}
	for _, c := range []struct {
		name     string
		held     []kafka.FetchedPart
		came     []kafka.FetchedPart
		working  bool
		at, end  int64
		want     int64 // where it stands then
		resigned bool
	}{
		{name: "nothing is held", at: 50, end: 30, want: 30},
		{name: "another partition's messages are held", held: []kafka.FetchedPart{part(other, 0, 5)}, at: 50, end: 30, want: 30},
		{name: "messages are held", held: []kafka.FetchedPart{part(p, 50, 60)}, at: 60, end: 30, want: 50, resigned: true},
		{name: "the end is among those that are held", held: []kafka.FetchedPart{part(p, 50, 60)}, at: 60, end: 55, want: 50, resigned: true},
		{name: "messages come with it", came: []kafka.FetchedPart{part(p, 50, 60)}, at: 60, end: 30, want: 50, resigned: true},
		{name: "markers come with it", came: []kafka.FetchedPart{markers}, at: 60, end: 30, want: 50, resigned: true},
		{name: "user code runs", working: true, at: 50, end: 30, want: 50, resigned: true},
		{name: "the beginning was lost", held: []kafka.FetchedPart{part(p, 50, 60)}, at: 60, end: 90, want: 50},
	} {
		t.Run(c.name, func(t *testing.T) {
			app := &App{cfg: Config{Application: "test", OnOffsetOutOfRange: GoToEarliest}.withDefaults()}
			app.metrics = newMetrics(app)
			r := &incarnation{s: &shard{app: app, id: "in-000"}, log: slog.New(slog.DiscardHandler)}
			r.backlog = newBacklog(map[topic.Partition]int64{p: 50, other: 0})
			r.position.Offsets.Inputs = []changelog.Offset{{Topic: "in", Next: 50}}
			held := &kafka.Fetched{Parts: c.held}
			for _, f := range c.held {
				held.Count += f.Len()
			}
			r.backlog.push(held)
			queued := r.backlog.queued
			r.pace.working = c.working

			missing := &kafka.OffsetRangeError{Partition: p, Offset: c.at, End: c.end}
			if c.end > c.at {
				missing.Earliest = c.end
			}
			next, err := r.outOfRange(missing, "out of range", false)
			if err != nil {
				t.Fatal(err)
			}
			err = r.moveBack(missing, next, &kafka.Fetched{Parts: c.came})
			if resigned := errors.Is(err, missing); resigned != c.resigned || err != nil && !resigned {
				t.Errorf("the incarnation goes on with %v, want an end: %v", err, c.resigned)
			}
			if b := r.backlog; b.positions[p] != c.want || b.committed[p] != c.want || r.position.Offsets.Inputs[0].Next != c.want || b.queued != queued {
				t.Errorf("it stands at %d, has committed %d and %d, and %d messages are queued; want %d and %d messages", b.positions[p], b.committed[p], r.position.Offsets.Inputs[0].Next, b.queued, c.want, queued)
			}
		})
	}
}
