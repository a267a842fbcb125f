package broker

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// What is written is read, in order and whole, however it is cut on either
// side.
func TestPipe(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sizes := rapid.SliceOfN(rapid.OneOf(rapid.IntRange(0, 100), rapid.IntRange(0, 3*pipeBuffer)), 1, 20).Draw(t, "writes")
		reads := rapid.SliceOfN(rapid.OneOf(rapid.IntRange(1, 100), rapid.IntRange(1, 2*pipeBuffer)), 1, 20).Draw(t, "reads")
		var want []byte
		for i, n := range sizes {
			for j := range n {
				want = append(want, byte(i+j*7+j>>8))
			}
		}
		a, b := newPipe()
		var writer sync.WaitGroup
		var writeErr error
		writer.Go(func() {
			rest := bytes.Clone(want)
			for _, n := range sizes {
				m, err := a.Write(rest[:n])
				clear(rest[:n]) // it is the writer's again
				if err != nil || m != n {
					writeErr = errors.Join(err, io.ErrShortWrite)
					break
				}
				rest = rest[n:]
			}
			writeErr = errors.Join(writeErr, a.Close())
		})
		var got []byte
		for i := 0; ; i++ {
			p := make([]byte, reads[i%len(reads)])
			n, err := b.Read(p)
			got = append(got, p[:n]...)
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		writer.Wait()
		if writeErr != nil {
			t.Fatal(writeErr)
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("read %d bytes, other than the %d that were written", len(got), len(want))
		}
	})
}

// Writes of several goroutines come one after the other, each whole.
func TestPipeWriters(t *testing.T) {
	a, b := newPipe()
	var writers sync.WaitGroup
	for i := range byte(4) {
		writers.Go(func() {
			for range 10 {
				if _, err := a.Write(bytes.Repeat([]byte{i}, pipeDirect+1)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	p := make([]byte, pipeDirect+1)
	for range 40 {
		if _, err := io.ReadFull(b, p); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(p, bytes.Repeat(p[:1], len(p))) {
			t.Fatal("two writes are mixed up")
		}
	}
	writers.Wait()
}

// A write that nobody reads ends at its deadline or with the connection, and
// so does a read; what was handed over until then is counted.
func TestPipeEnds(t *testing.T) {
	for _, size := range []int{pipeDirect, 100} {
		a, b := newPipe()
		p := make([]byte, size)
		for i := 0; size < pipeDirect && i < pipeBuffer/size; i++ {
			if _, err := a.Write(p); err != nil {
				t.Fatal(err)
			}
		}
		if err := a.SetWriteDeadline(time.Now().Add(-time.Second)); err != nil {
			t.Fatal(err)
		}
		if n, err := a.Write(p); !errors.Is(err, os.ErrDeadlineExceeded) || n == size {
			t.Errorf("a write of %d that nobody reads: %d, %v, want a deadline", size, n, err)
		}
		if err := a.SetWriteDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error)
		go func() {
			_, err := a.Write(make([]byte, pipeDirect))
			ended <- err
		}()
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("a write to a reader that has gone: %v, want %v", err, io.ErrClosedPipe)
		}
		if _, err := b.Read(p); !errors.Is(err, net.ErrClosed) {
			t.Errorf("a read after Close: %v, want %v", err, net.ErrClosed)
		}
	}
}

// A flow takes no more room than it has needed, and keeps what is in it while it
// grows, also around its end.
func TestPipeGrows(t *testing.T) {
	f := newFlow()
	var sent, got []byte
	for i := range 200 {
		p := make([]byte, 1+i*7%900)
		for j := range p {
			p[j] = byte(i + j)
		}
		if n, err := f.Write(p); n != len(p) || err != nil {
			t.Fatalf("Write = %d, %v", n, err)
		}
		sent = append(sent, p...)
		q := make([]byte, len(p)*2/3)
		n, err := f.Read(q)
		if err != nil && len(q) > 0 {
			t.Fatal(err)
		}
		got = append(got, q[:n]...)
		if i == 0 && len(f.mu.ring) != pipeBufferMin {
			t.Errorf("a byte takes a ring of %d, want %d", len(f.mu.ring), pipeBufferMin)
		}
	}
	for len(got) < len(sent) {
		q := make([]byte, 1000)
		n, err := f.Read(q)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, q[:n]...)
	}
	if string(got) != string(sent) {
		t.Error("what is read is not what was written")
	}
}
