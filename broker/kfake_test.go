package broker

import (
	"fmt"
	"net"
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
)

// runKfake is a child that runs kfake on a data directory, each write synced,
// until it is killed.
func runKfake(dir string) {
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.DataDir(dir), kfake.SyncWrites(), kfake.ListenFn(func(string, string) (net.Listener, error) {
		return net.Listen("tcp", "127.0.0.1:0")
	}))
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	fmt.Println(c.ListenAddrs()[0])
	select {}
}

// The workload and the checker in which this broker is found without fault find
// that kfake with a data directory does not survive kill -9: a transaction over
// many partitions is there in some of them. A checker that can't fail would
// prove nothing.
func TestListAppendFindsTornTransactions(t *testing.T) {
	kinds := regexp.MustCompile(`is torn|is lost|was aborted|twice|earlier one|never appended|went from|saw|comes to`)
	for i := range 10 {
		h := listAppend{settings: childSettings{Dir: t.TempDir(), Kfake: true}, seed: seed(t) + uint64(i), lists: 30, aimed: true}
		h.more = func() bool { return h.kills < 4 }
		wrong, committed := h.run(t)
		found := make(map[string]int)
		for _, w := range wrong {
			found[kinds.FindString(w)]++
		}
		t.Logf("seed %d: %d kills, %d transactions committed, found %v", h.seed, h.kills, committed, found)
		if slices.ContainsFunc(wrong, regexp.MustCompile("is torn").MatchString) {
			return
		}
	}
	t.Error("the checker finds no transaction torn, and kfake writes the end of each to one partition after the other")
}
