package broker

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// The test binary, started again with this variable set, is a crowd of clients:
// the variable holds an address and how many. Each process has a limit of open
// files of its own. It says how many were served, and holds on to those until
// its input ends.
const crowdConfig = "PAWL_TEST_CROWD"

func runCrowd() {
	text := os.Getenv(crowdConfig)
	if text == "" {
		return
	}
	addr, count, _ := strings.Cut(text, " ")
	n, err := strconv.Atoi(count)
	if err != nil {
		panic(err)
	}
	served, refused, broken := 0, 0, 0
	var conns []net.Conn
	for i := range n {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			conns = append(conns, c)
			err = hello(c)
		}
		switch {
		case err == nil:
			served++
		case errors.Is(err, io.EOF) || isReset(err):
			refused++
		default:
			fmt.Fprintf(os.Stderr, "connection %d: %v\n", i, err)
			broken++
		}
		if err == nil && i%10 == 0 {
			// It claims a hundred megabytes, and sends a little of it, as far as it is let.
			if err = c.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)); err == nil {
				_, err = c.Write(append(size(100<<20, 0, 0, 0, 9, 0, 0, 0, 0), make([]byte, 100<<10)...))
			}
			if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
				fmt.Fprintf(os.Stderr, "connection %d: %v\n", i, err)
				broken++
			}
		}
	}
	fmt.Println(served, refused, broken)
	_, _ = io.Copy(io.Discard, os.Stdin)
	runtime.KeepAlive(conns) // they close when they are collected
	os.Exit(0)
}

// hello asks which versions there are, and waits for the answer.
func hello(c net.Conn) error {
	if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return err
	}
	if _, err := c.Write(kmsg.NewRequestFormatter().AppendRequest(nil, kmsg.NewPtrApiVersionsRequest(), 1)); err != nil {
		return err
	}
	head := make([]byte, 4)
	if _, err := io.ReadFull(c, head); err != nil {
		return err
	}
	_, err := io.CopyN(io.Discard, c, int64(head[2])<<8|int64(head[3]))
	return err
}

// startCrowd starts a crowd, and returns how many of it were served and how many
// refused once all have tried.
func startCrowd(t *testing.T, addr string, n int) (served, refused int, leave func()) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d", crowdConfig, addr, n))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	gone := false
	leave = func() {
		if gone {
			return
		}
		gone = true
		_ = in.Close() // which ends it
		if err := cmd.Wait(); err != nil {
			t.Errorf("the crowd: %v", err)
		}
	}
	t.Cleanup(leave)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the crowd said %q, %v", line, err)
	}
	var broken int
	if _, err := fmt.Sscan(line, &served, &refused, &broken); err != nil || broken != 0 {
		t.Errorf("the crowd said %q, %v, want three numbers, the last one 0", line, err)
	}
	return served, refused, leave
}

// A thousand connections, or in the soak ten thousand, some of which say half of
// something, leave the broker up and within its memory.
func TestB6ManyConnections(t *testing.T) {
	c := listening()
	c.Settings = map[string]string{"max.connections": "100000"}
	k := start(t, c)
	k.create("out", 1)
	n, each := 1000, 500
	if soak(t) > 0 {
		n, each = 10_000, 5000
	}
	if most := int(k.files.connections); n > most {
		t.Logf("%d connections, for this process may have %d files open", most, openFilesLimit())
		n = most
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for left := n; left > 0; left -= each {
		if served, refused, _ := startCrowd(t, k.Addr(), min(left, each)); served != min(left, each) || refused != 0 {
			t.Fatalf("%d are served and %d refused, want %d and none", served, refused, min(left, each))
		}
	}
	if got := k.Snapshot().Connections; got < n {
		t.Errorf("%d connections, want %d", got, n)
	}
	runtime.ReadMemStats(&after)
	if used, limit := int64(after.HeapAlloc)-int64(before.HeapAlloc), k.config.withDefaults().Memory+int64(n)*64<<10; used > limit {
		t.Errorf("%d connections take %d MB, more than %d MB", n, used>>20, limit>>20)
	}
	if got := k.requests.used(); got > k.requests.total {
		t.Errorf("requests take %d bytes, more than %d", got, k.requests.total)
	}
	cl := k.client()
	if _, err := k.topicID(cl, "out"); err != nil {
		t.Errorf("a client within the process: %v", err)
	}
	t.Logf("%d connections", n)
}

// More connections than there may be open files: what is too many is refused at
// once, and the storage has the files that it needs.
func TestB6OpenFiles(t *testing.T) {
	const limit = 400
	s := childSettings{Dir: t.TempDir(), Files: limit}
	k := remote(t, s, "")
	k.create("out", 1)
	cl := k.client(manual(), kgo.ProducerBatchCompression(kgo.NoCompression()))
	k.produceTo(cl, "out", 0, "before")
	want := int(shareFiles(limit).connections)
	served, refused, leave := startCrowd(t, k.child.addr, limit+200)
	if served > want || served < want-10 || served+refused != limit+200 {
		t.Errorf("%d are served and %d refused, want about %d and all others", served, refused, want)
	}
	big := string(random(200 << 10))
	for range 100 { // the storage writes new files
		k.produceTo(cl, "out", 0, big)
	}
	leave()
	for range 100 {
		if served, _, leave = startCrowd(t, k.child.addr, 1); served == 1 {
			break
		}
		leave()
	}
	if served != 1 {
		t.Error("when the others have left, nobody is served")
	}
	if got := len(k.read("out", 0, true)); got != 101 {
		t.Errorf("%d messages are there, want 101", got)
	}
}

// However many files there may be, each gets some.
func TestShareFiles(t *testing.T) {
	for limit, want := range map[uint64]openFiles{
		0:       {64, 1},
		100:     {64, 11},
		256:     {64, 128},
		1024:    {256, 512},
		20_000:  {4096, 10_904},
		1 << 20: {4096, 782_336},
		1 << 63: {4096, 1<<31 - 1<<29 - 4096},
	} {
		if got := shareFiles(limit); got != want {
			t.Errorf("of %d files: %+v, want %+v", limit, got, want)
		}
	}
}
