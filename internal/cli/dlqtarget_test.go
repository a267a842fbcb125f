package cli

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pawlstream/pawl/internal/invariants"
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

const toProd = "; to the cluster of context prod, each at least once\n"

// twoClusters returns dead letters on one cluster, and another that is context
// prod, which has the topics of the same queue.
func twoClusters(t *testing.T) (from, to *deadLetters) {
	t.Helper()
	contexts(t)
	from, to = newDeadLetters(t), newDeadLetters(t)
	if status, _, stderr := pawl("context", "add", "prod", "--brokers", to.broker.Addr()); status != exitOK {
		t.Fatalf("add a context: %d %s", status, stderr)
	}
	return from, to
}

// came returns what is in partition 0 of a topic: how often each value.
func (d *deadLetters) came(name string) map[string]int {
	d.t.Helper()
	p := topic.Partition{Topic: name}
	ends, err := d.admin.Offsets(d.t.Context(), kafka.StableEnd, p)
	if err != nil {
		d.t.Fatal(err)
	}
	r, err := kafka.NewReader(d.kafka, kafka.ReaderConfig{Committed: true})
	if err != nil {
		d.t.Fatal(err)
	}
	defer r.Close()
	r.Consume(topic.Bytes(name).Description, 0, 0)
	times := make(map[string]int)
	for next := int64(0); next < ends[p]; {
		var batch kafka.Batch
		if err := r.Poll(d.t.Context(), 1000, &batch); err != nil {
			d.t.Fatal(err)
		}
		for _, e := range batch.Envelopes {
			times[string(e.Value)]++
			next = e.Offset + 1
		}
	}
	return times
}

func (d *deadLetters) wantCame(name, want string) {
	d.t.Helper()
	if got := fmt.Sprint(d.came(name)); got != want {
		d.t.Errorf("in %s are %s, want %s", name, got, want)
	}
}

// Letters go to the cluster of a context, to their consumer there, and what
// became of them is on record where they are. A dry run says what that promises,
// and sends nothing.
func TestRedriveToAContext(t *testing.T) {
	from, to := twoClusters(t)
	// The settings of the program whose letters they are: it has them apart.
	dir := t.TempDir()
	t.Chdir(dir)
	settings := fmt.Sprintf("brokers: %s\ndead-letters-brokers: %s\n", to.broker.Addr(), from.broker.Addr())
	if err := os.WriteFile(filepath.Join(dir, "pawl.yaml"), []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		from.publish(from.letter("ann", fmt.Sprint(i), "failed", "timeout"))
	}
	from.want(exitOK, "3 letters would be redriven, 0 left"+toProd, "redrive", "--all", "--to-context", "prod", "--dry-run")
	from.want(exitOK, `{"action":"redriven","topic":"shop.mailer.dlq","dry_run":true,"moved":3,"failed":0,"left":0,"whole":true,"to_context":"prod","delivery":"at least once"}`+"\n",
		"redrive", "--all", "--to-context", "prod", "--dry-run", "-o", "json")
	to.wantCame(testRedrive, "map[]")
	from.want(exitOK, "1 letter redriven, 0 failed, 0 left"+toProd, "redrive", "0:1", "--to-context", "prod", "--yes")
	to.wantCame(testRedrive, "map[1:1]")
	from.want(exitOK, "2 letters redriven, 0 failed, 0 left"+toProd, "redrive", "--all", "--to-context", "prod", "--yes")
	from.want(exitOK, "0 letters redriven, 0 failed, 0 left"+toProd, "redrive", "--all", "--to-context", "prod", "--yes")
	to.wantCame(testRedrive, "map[0:1 1:1 2:1]")
	if got := from.redriven(); got != 0 {
		t.Errorf("the topic by which letters come back on their own cluster ends at %d, want 0", got)
	}
	if got := from.list(); got != nil {
		t.Errorf("%v are listed, want none: all are settled", got)
	}
}

// A letter that the other cluster refuses is still there, and goes when it is
// called again; those that went do not.
func TestRedriveToAContextResumes(t *testing.T) {
	from, to := twoClusters(t)
	to.create(kafka.TopicSpec{Name: "small", Partitions: 1, Settings: map[string]string{"max.message.bytes": "2000"}})
	to.create(kafka.TopicSpec{Name: "large", Partitions: 1})
	big := strings.Repeat("x", 5000)
	from.publish(from.letter("a", "1", "failed", "timeout"), from.letter("b", big, "failed", "timeout"), from.letter("c", "3", "failed", "timeout"))
	from.want(exitError, "2 letters redriven, 1 failed, 0 left"+toProd, "redrive", "--all", "--yes", "--to", "small", "--to-context", "prod")
	to.wantCame("small", "map[1:1 3:1]")
	if got, want := fmt.Sprint(from.list()), "[0:1]"; got != want {
		t.Errorf("%s are left, want %s", got, want)
	}
	from.want(exitOK, "1 letter redriven, 0 failed, 0 left"+toProd, "redrive", "--all", "--yes", "--to", "large", "--to-context", "prod")
	to.wantCame("large", "map["+big+":1]")
}

// A redrive to another cluster that is killed between the letters there and
// their record here sends those again, and loses none.
func TestRedriveToAContextIsKilled(t *testing.T) {
	if !invariants.Enabled {
		t.Skip("crash points need the build tag invariants") // without it no crash point is compiled in; make test sets it
	}
	const letters, batch = 230, 100
	from, to := twoClusters(t)
	var recs []kafka.Record
	for i := range letters {
		recs = append(recs, from.letter("k", fmt.Sprint("v", i), "failed", "no"))
	}
	from.publish(recs...)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, "dlq", "redrive", "--brokers", from.broker.Addr(), "--application", "shop", "--consumer", "mailer", "--all", "--yes", "--to-context", "prod")
	cmd.Env = append(os.Environ(), "PAWL_CRASH=redrive-before:1")
	var exit *exec.ExitError
	if out, err := cmd.CombinedOutput(); !errors.As(err, &exit) || exit.Exited() && exit.ExitCode() == exitUsage {
		t.Fatalf("the call was not killed: %v\n%s", err, out)
	}
	if got := len(from.list()); got != letters {
		t.Errorf("%d letters are open, want %d: nothing is on record yet", got, letters)
	}
	from.want(exitOK, fmt.Sprintf("%d letters redriven, 0 failed, 0 left", letters)+toProd, "redrive", "--all", "--yes", "--to-context", "prod")
	times := to.came(testRedrive)
	twice := 0
	for v, n := range times {
		if n > 2 {
			t.Errorf("%s came %d times", v, n)
		}
		twice += n - 1
	}
	if len(times) != letters || twice != batch {
		t.Errorf("%d letters came, %d of them twice; want %d, %d of them twice", len(times), twice, letters, batch)
	}
	if left := from.list(); len(left) != 0 {
		t.Errorf("%d letters are left", len(left))
	}
}

// What can't be is said before a letter moves, also by a dry run.
func TestRedriveToNoContext(t *testing.T) {
	from, to := twoClusters(t)
	for _, args := range [][]string{
		{"here", "--brokers", from.broker.Addr() + ",127.0.0.1:9"},
		{"down", "--brokers", "127.0.0.1:1"},
		{"anon", "--brokers", to.broker.Addr(), "--sasl-mechanism", "PLAIN", "--sasl-username", "ann"},
	} {
		if status, _, stderr := pawl(append([]string{"context", "add"}, args...)...); status != exitOK {
			t.Fatalf("add context %v: %d %s", args, status, stderr)
		}
	}
	t.Setenv("PAWL_CONTEXT", "here") // --brokers wins
	from.publish(from.letter("a", "1", "failed", "timeout"))
	for _, tt := range []struct {
		args   string
		status int
		want   string
	}{
		{"redrive --to-context prdo", exitUsage, `--to-context "prdo": `},
		{"redrive --to-context prdo", exitUsage, `has no such context: did you mean prod?`},
		{"redrive --to-context=", exitUsage, `--to-context "": want the name of a context`},
		{"redrive --to-context here", exitUsage, "--to-context here is the cluster that the letters are in: without it they go there, too, each exactly once"},
		{"redrive --to-context anon", exitUsage, "context anon: SASL PLAIN needs a password"},
		{"redrive --to-context down", exitError, "context down: "},
		{"redrive --to-context prod --to nowhere", exitError, "context prod: topic nowhere, which letters would go to: unknown topic or partition"},
		{"discard --to-context prod", exitUsage, "unknown flag --to-context"},
	} {
		for _, how := range []string{"--dry-run", "--yes"} {
			status, stdout, stderr := from.run(append(strings.Fields(tt.args), "--all", how)...)
			if status != tt.status || stdout != "" || !strings.Contains(stderr, tt.want) {
				t.Errorf("%s %s: status %d, standard output %q, standard error %q, want %d and %q", tt.args, how, status, stdout, stderr, tt.status, tt.want)
			}
		}
	}
	to.wantCame(testRedrive, "map[]")
	if got, want := fmt.Sprint(from.list()), "[0:0]"; got != want {
		t.Errorf("%s are left, want %s", got, want)
	}
}
