package consumertest

import (
	"bytes"
	"runtime"
)

// wantsTag is why a test in a bubble is skipped. The client would hang there,
// in some runs.
const wantsTag = "consumertest in a synctest bubble needs the build tag synctests: go test -tags synctests"

// inBubble says whether the calling goroutine runs in a bubble of
// testing/synctest. Nothing in the standard library answers that. A call of
// synctest.Wait would, by its panic outside, but the test may be in one already.
// The header of a goroutine's own stack says it in words.
func inBubble() bool {
	buf := make([]byte, 256)
	buf = buf[:runtime.Stack(buf, false)]
	header, _, _ := bytes.Cut(buf, []byte("\n"))
	return bytes.Contains(header, []byte("synctest bubble"))
}
