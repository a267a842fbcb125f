package cli

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/pawlstream/pawl/topic"
)

// queueStory is what a run over a few messages publishes if all goes well.
type queueStory struct {
	seed     uint64
	inputs   []position
	receipts []receipt
	letters  []position
	returned []position
}

const storyMessages = 2000 // enough for the rule to have some of each kind

func newQueueStory(seed uint64) *queueStory {
	s := &queueStory{seed: seed}
	for offset := range int64(storyMessages) {
		at := position{0, offset}
		s.inputs = append(s.inputs, at)
		needs := queueRule(seed, at)
		for n := 1; n < needs || needs == 0 && n <= queueAttempts; n++ {
			s.receipts = append(s.receipts, receipt{Input: at, Attempt: n})
		}
		if needs > 0 {
			s.receipts = append(s.receipts, receipt{Input: at, Attempt: needs, OK: true})
			continue
		}
		s.letters, s.returned = append(s.letters, at), append(s.returned, at)
	}
	for _, at := range s.letters {
		s.receipts = append(s.receipts, receipt{Input: at, Attempt: 1, OK: true, Repaired: true})
	}
	return s
}

// audit reads the story.
func (s *queueStory) audit(t *testing.T) *queueAudit {
	t.Helper()
	a := newQueueAudit(s.seed)
	for _, at := range s.inputs {
		a.input(at)
	}
	headers := func(at position) []topic.Header {
		return []topic.Header{{Key: "pawl-partition", Value: fmt.Append(nil, at.Partition)}, {Key: "pawl-offset", Value: fmt.Append(nil, at.Offset)}}
	}
	for i, at := range s.letters {
		a.letter(position{0, int64(i)}, headers(at))
	}
	for i, at := range s.returned {
		a.comeback(position{0, int64(i)}, headers(at))
	}
	for i, r := range s.receipts {
		value, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		a.receipt(position{0, int64(i)}, []byte("key"), value)
	}
	return a
}

func TestQueueAudit(t *testing.T) {
	s := newQueueStory(1)
	a := s.audit(t)
	if wrong := a.verdict(storyMessages); wrong.count > 0 {
		t.Errorf("of a run that goes well:\n%v", wrong)
	}
	letters := int64(len(s.letters))
	if letters == 0 || a.acked != storyMessages || a.deadLettered != letters || a.redriven != letters || a.redelivered != 0 || a.lost() != 0 {
		t.Errorf("%d acked, %d dead-lettered, %d redriven, %d redelivered, %d lost; want %d, %d, %d, 0 and 0", a.acked, a.deadLettered, a.redriven, a.redelivered, a.lost(), storyMessages, letters, letters)
	}
	if w := a.want(); w.retried != a.retried || w.deadLettered != letters {
		t.Errorf("the rule makes %+v, and %d retried, %d dead-lettered were read", w, a.retried, letters)
	}
	s.receipts = append(s.receipts, s.receipts[0], s.receipts[len(s.receipts)-1])
	s.letters, s.returned = append(s.letters, s.letters[0]), append(s.returned, s.letters[0])
	if a := s.audit(t); a.redelivered != 2 || a.verdict(storyMessages).count > 0 {
		t.Errorf("%d redelivered, want 2; otherwise:\n%v", a.redelivered, a.verdict(storyMessages))
	}
}

// Whatever is not as it should be is found.
func TestQueueAuditFinds(t *testing.T) {
	find := func(s *queueStory, needs int, ok bool) int {
		for i, r := range s.receipts {
			if queueRule(s.seed, r.Input) == needs && r.OK == ok {
				return i
			}
		}
		t.Fatalf("no receipt of a message that needs %d attempts", needs)
		return 0
	}
	without := func(i int) func(s *queueStory) {
		return func(s *queueStory) { s.receipts = append(s.receipts[:i:i], s.receipts[i+1:]...) }
	}
	sound := newQueueStory(1)
	for name, tt := range map[string]struct {
		harm func(*queueStory)
		want string
	}{
		"lost":        {without(find(sound, 1, true)), "lost: 1, want 0"},
		"not retried": {without(find(sound, 2, false)), "want success at attempt 2 and nothing else"},
		"retried too often": {func(s *queueStory) {
			i := find(s, 1, true)
			s.receipts[i].OK = false
			s.receipts = append(s.receipts, receipt{Input: s.receipts[i].Input, Attempt: 2, OK: true})
		}, "want success at attempt 1"},
		"dead-lettered for naught": {func(s *queueStory) {
			at := s.receipts[find(s, 1, true)].Input
			s.letters, s.returned = append(s.letters, at), append(s.returned, at)
		}, "want success at attempt 1 and nothing else"},
		"not dead-lettered": {func(s *queueStory) { s.letters, s.returned = s.letters[1:], s.returned[1:] }, "a dead letter, and success once it came back"},
		"redriven twice":    {func(s *queueStory) { s.returned = append(s.returned, s.returned[0]) }, "redriven messages: "},
		"not redriven":      {func(s *queueStory) { s.returned = s.returned[1:] }, "redriven messages: "},
		"out of order":      {func(s *queueStory) { s.receipts[0], s.receipts[1] = s.receipts[1], s.receipts[0] }, "out of order: 1, want 0"},
		"from nowhere": {func(s *queueStory) {
			s.receipts = append(s.receipts, receipt{Input: position{3, 5}, Attempt: 1, OK: true})
		}, "it was handled, and is not in the input"},
		"absurd":  {func(s *queueStory) { s.receipts = append(s.receipts, receipt{Input: position{0, 1 << 40}, Attempt: 1}) }, "which is not in the input"},
		"not fed": {func(s *queueStory) { s.inputs = s.inputs[1:] }, "messages in the input topic: 1999, want 2000"},
	} {
		s := newQueueStory(1)
		tt.harm(s)
		if wrong := s.audit(t).verdict(storyMessages); !strings.Contains(wrong.String(), tt.want) {
			t.Errorf("%s: found %q, want %q", name, wrong, tt.want)
		}
	}
	a := newQueueAudit(1)
	a.letter(position{1, 2}, nil)
	a.receipt(position{0, 0}, nil, []byte("{"))
	if got, want := a.wrong.String(), "the dead letter in partition 1 at offset 2 does not say where it was consumed\nthe topic of receipts holds \"{\", in partition 0 at offset 0"; got != want {
		t.Errorf("found %q, want %q", got, want)
	}
}
