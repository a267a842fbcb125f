package cli

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"

	"github.com/pawlstream/pawl/topic"
)

// queueAttempts is how many attempts a work item of the demo has: two where it
// is, and one after each of two delays.
const queueAttempts = 4

// queueRule says how many attempts the work item at a position needs: 1 for
// most, more for some, and 0 for one whose handler fails until it is repaired.
func queueRule(seed uint64, at position) int {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %d %d", seed, at.Partition, at.Offset)
	switch n := h.Sum64() % 1000; {
	case n < 3:
		return 0
	case n < 6:
		return 4
	case n < 13:
		return 3
	case n < 33:
		return 2
	}
	return 1
}

// receipt is what the handler of a work item publishes of each attempt, before
// it returns.
type receipt struct {
	Input    position `json:"input"`
	Attempt  int      `json:"attempt"`
	OK       bool     `json:"ok"`
	Repaired bool     `json:"repaired,omitempty"` // by a handler that was repaired
}

// queueAudit holds what the topics of a run of the queue demo say, as they are
// read from the broker. It believes nothing else.
type queueAudit struct {
	seed  uint64
	items map[int32][]queueItem // by partition and offset

	inputs       int64 // messages of the input
	acked        int64 // of them, those with a receipt of success
	retried      int64 // attempts after the first, each counted once
	deadLettered int64 // messages that became dead letters
	redriven     int64 // messages that came back from there
	redelivered  int64 // attempts that were made again, since a process ended before it had committed
	stuck        int64 // messages that are dead letters and have no receipt of success
	letters      int64 // records in the topic of dead letters
	returned     int64 // records in the topic by which they come back

	returnedTo map[int32]int64 // of that, by partition: above its last record

	last     map[string]int64 // by key: the offset of the last one that was handled with success
	disorder int64
	wrong    findings
}

// queueItem is what is known of one work item.
type queueItem struct {
	there            bool  // it is in the input
	failed           uint8 // attempts that failed: a bit each
	ok               uint8 // attempts that succeeded
	repaired         bool  // it was handled with success by the repaired handler
	letter, returned bool
}

func (i *queueItem) done() bool { return i.ok != 0 || i.repaired }

func newQueueAudit(seed uint64) *queueAudit {
	return &queueAudit{seed: seed, items: make(map[int32][]queueItem), returnedTo: make(map[int32]int64), last: make(map[string]int64)}
}

// positionMax bounds what a position may be: more is not in a demo's input.
const positionMax = 1 << 26

// at returns the item at a position.
func (a *queueAudit) at(p position) *queueItem {
	if p.Partition < 0 || p.Offset < 0 || p.Offset >= positionMax {
		a.wrong.add("partition %d, offset %d is named, which is not in the input", p.Partition, p.Offset)
		return &queueItem{there: true}
	}
	part := a.items[p.Partition]
	if n := int(p.Offset) + 1 - len(part); n > 0 {
		part = append(part, make([]queueItem, n)...)
		a.items[p.Partition] = part
	}
	return &part[p.Offset]
}

// input takes a message of the input.
func (a *queueAudit) input(p position) {
	if i := a.at(p); !i.there {
		i.there = true
		a.inputs++
	}
}

// receipt takes a message of the topic of receipts. All of one key are in one
// partition, in the order in which they were published.
func (a *queueAudit) receipt(at position, key, value []byte) {
	var r receipt
	if err := json.Unmarshal(value, &r); err != nil || r.Attempt < 1 || r.Attempt > queueAttempts {
		a.wrong.add("the topic of receipts holds %.200q, in partition %d at offset %d", value, at.Partition, at.Offset)
		return
	}
	i, bit, before := a.at(r.Input), uint8(1)<<r.Attempt, false
	was := i.done()
	switch {
	case r.OK && r.Repaired && i.letter: // its attempts are counted anew
		before, i.repaired = i.repaired, true
	case r.OK:
		before = i.ok&bit != 0
		i.ok |= bit
	default:
		before = i.failed&bit != 0
		i.failed |= bit
	}
	switch {
	case before:
		a.redelivered++
	case r.Attempt > 1:
		a.retried++
	}
	if was || !i.done() {
		return
	}
	a.acked++
	if i.letter {
		a.stuck--
	}
	if queueRule(a.seed, r.Input) == 0 {
		return // it left its place
	}
	if last, ok := a.last[string(key)]; ok && r.Input.Offset < last {
		a.disorder++
	}
	a.last[string(key)] = r.Input.Offset
}

// letter takes a message of the topic of dead letters.
func (a *queueAudit) letter(at position, headers []topic.Header) {
	a.letters++
	i := a.origin("dead letter", at, headers)
	if i == nil || i.letter {
		return
	}
	i.letter = true
	a.deadLettered++
	if !i.done() {
		a.stuck++
	}
}

// comeback takes a message of the topic by which dead letters come back.
func (a *queueAudit) comeback(at position, headers []topic.Header) {
	a.returned++
	a.returnedTo[at.Partition] = max(a.returnedTo[at.Partition], at.Offset+1)
	if i := a.origin("redriven message", at, headers); i != nil && !i.returned {
		i.returned = true
		a.redriven++
	}
}

// origin returns the item that a message of another topic is of, as its headers
// say.
func (a *queueAudit) origin(what string, at position, headers []topic.Header) *queueItem {
	number := func(name string, bits int) int64 {
		i := slices.IndexFunc(headers, func(h topic.Header) bool { return h.Key == name })
		if i < 0 {
			return -1
		}
		n, err := strconv.ParseInt(string(headers[i].Value), 10, bits)
		if err != nil {
			return -1
		}
		return n
	}
	p := position{int32(number("pawl-partition", 32)), number("pawl-offset", 64)}
	if p.Partition < 0 || p.Offset < 0 {
		a.wrong.add("the %s in partition %d at offset %d does not say where it was consumed", what, at.Partition, at.Offset)
		return nil
	}
	return a.at(p)
}

// settled is how many messages are handled with success, or dead letters.
func (a *queueAudit) settled() int64 { return a.acked + a.stuck }

// lost is how many messages have no receipt of success.
func (a *queueAudit) lost() int64 { return a.inputs - a.acked }

// verdict compares what was read with what the rule says, after the end.
func (a *queueAudit) verdict(messages int64) findings {
	wrong := a.wrong
	wrong.want("messages in the input topic", a.inputs, messages)
	wrong.want("lost", a.lost(), 0)
	wrong.want("messages of one key out of order", a.disorder, 0)
	wrong.want("redriven messages", a.returned, a.letters)
	for partition, part := range a.items {
		for offset := range part {
			at := position{partition, int64(offset)}
			if what := part[offset].differs(queueRule(a.seed, at)); what != "" {
				wrong.add("partition %d, offset %d: %s", partition, offset, what)
			}
		}
	}
	return wrong
}

// differs says what of an item is not as the rule has it, or returns "".
func (i *queueItem) differs(needs int) string {
	attempts := func(n int) uint8 { return uint8(1)<<(n+1) - 2 } // the bits of 1 to n
	switch {
	case !i.there:
		return "it was handled, and is not in the input"
	case needs == 0 && (i.failed != attempts(queueAttempts) || i.ok != 0 || !i.letter || !i.returned || !i.repaired):
		return fmt.Sprintf("%v; want all %d attempts failed, a dead letter, and success once it came back", i, queueAttempts)
	case needs > 0 && (i.failed != attempts(needs-1) || i.ok != 1<<needs || i.letter || i.returned):
		return fmt.Sprintf("%v; want success at attempt %d and nothing else", i, needs)
	}
	return ""
}

func (i *queueItem) String() string {
	list := func(bits uint8) (ns []int) {
		for n := 1; n <= queueAttempts; n++ {
			if bits&(1<<n) != 0 {
				ns = append(ns, n)
			}
		}
		return ns
	}
	return fmt.Sprintf("attempts %v failed, %v succeeded, dead letter %v, came back %v, succeeded then %v", list(i.failed), list(i.ok), i.letter, i.returned, i.repaired)
}

// queueWant is what a run comes to if all goes well.
type queueWant struct{ retried, deadLettered int64 }

// want adds up the rule over the input.
func (a *queueAudit) want() (w queueWant) {
	for partition, part := range a.items {
		for offset := range part {
			if !part[offset].there {
				continue
			}
			switch needs := queueRule(a.seed, position{partition, int64(offset)}); needs {
			case 0:
				w.retried += queueAttempts - 1
				w.deadLettered++
			default:
				w.retried += int64(needs) - 1
			}
		}
	}
	return w
}
