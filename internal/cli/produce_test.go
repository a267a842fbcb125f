package cli

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
)

// Lines, a whole, one value, a tombstone: each arrives as what it is.
func TestProduceForms(t *testing.T) {
	onClusters(t, func(t *testing.T, o *operated) {
		name := o.create("forms", 2, nil)
		o.run("a:1\nb:2:3\n:\nlast:4", "produce", name, "--input", "lines", "--key-separator", ":", "--partition", "0", "--header", "tenant=x=y")
		o.run("all\nof it\n", "produce", name, "--input", "whole", "--key", "w", "--partition", "0")
		o.run("", "produce", name, "--value", "", "--key", "", "--partition", "0", "--timestamp", "2026-01-01")
		o.run("", "produce", name, "--tombstone", "--key", "a", "--partition", "0")
		o.run("\n{\"value\":\"j\"}\n\n", "produce", name, "--partition", "0")
		var got []string
		for _, e := range o.read(name)[0] {
			got = append(got, fmt.Sprintf("%s=%s%v", bytesText(e.Key), bytesText(e.Value), len(e.Headers)))
		}
		if want := "[a=11 b=2:31 =1 last=41 w=all\\nof it\\n0 =0 a=(null)0 (null)=j0]"; fmt.Sprint(got) != want {
			t.Errorf("got %v, want %s", got, want)
		}
		status, _, stderr := o.try("a:1\nno separator\n", "produce", name, "--input", "lines", "--key-separator", ":")
		if status != exitError || !strings.Contains(stderr, `line 2: "no separator" has no ":" after its key`) {
			t.Errorf("a line without a key: status %d, %q", status, stderr)
		}
		status, _, stderr = o.try(`{"value":"x"}`, "produce", o.name("missing"))
		if status != exitError || !strings.Contains(stderr, o.name("missing")) {
			t.Errorf("to a topic that is missing: status %d, %q", status, stderr)
		}
		status, _, stderr = o.try(`{"value":"x","partition":9}`, "produce", name, "--keep-partitions")
		if status != exitError || !strings.Contains(stderr, "line 1: ") {
			t.Errorf("to a partition that is missing: status %d, %q", status, stderr)
		}
		status, _, stderr = o.try(`{"value":"`+strings.Repeat("x", 2<<20)+`"}`, "produce", name)
		if status != exitError || !strings.Contains(stderr, "max.message.bytes") {
			t.Errorf("a value that is too large: status %d, %.300q", status, stderr)
		}
	})
}

// A key goes to the same partition whoever writes it.
func TestProduceRoutesAsOthersDo(t *testing.T) {
	onClusters(t, func(t *testing.T, o *operated) {
		name := o.create("routed", 10, nil)
		o.run("", "produce", name, "--key", "wu", "--value", "v")
		if got := o.read(name); len(got[0]) != 1 {
			t.Errorf("key wu of 10 partitions went to %v, want 0", got)
		}
	})
}

// lineSource is a standard input of long lines that never ends.
type lineSource struct{ read int }

func (s *lineSource) Read(p []byte) (int, error) {
	for i := range p {
		if p[i] = 'x'; (s.read+i)%sourceLine == sourceLine-1 {
			p[i] = '\n'
		}
	}
	s.read += len(p)
	return len(p), nil
}

const sourceLine = 3 << 20

// What is read ahead of what is written is bounded in bytes, however long the
// lines are; and all of it comes, in order.
func TestProduceReadsAheadInBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := new(lineSource)
		p := &produceFlags{topic: "t", input: inputLines}
		from := p.readAhead(t.Context(), source)
		defer from.stop()
		const most = aheadBytes + 2*sourceLine // one line waits for room, and one is begun
		taken := 0
		for range 10 {
			synctest.Wait()
			if got := source.read - taken; got > most {
				t.Fatalf("%d bytes are read ahead, want at most %d", got, most)
			}
			in := <-from.inputs
			if taken += len(in.record.Value) + 1; in.line*sourceLine != taken {
				t.Fatalf("line %d ends at %d, want %d", in.line, taken, in.line*sourceLine)
			}
			from.room.Release(in.size)
		}
	})
	// A line that is larger than the room is not waited for.
	synctest.Test(t, func(t *testing.T) {
		p := &produceFlags{topic: "t", input: inputWhole}
		from := p.readAhead(t.Context(), strings.NewReader(strings.Repeat("x", 2*aheadBytes)))
		defer from.stop()
		synctest.Wait()
		if in := <-from.inputs; len(in.record.Value) != 2*aheadBytes || in.err != nil {
			t.Errorf("got %d bytes, %v", len(in.record.Value), in.err)
		}
	})
}
