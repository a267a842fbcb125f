package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
)

func namesIn(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// What a broker left behind that was killed goes with the next one's start, and
// nothing else does: what another uses, what is being made, what the user has.
func TestDevRemovesTheDead(t *testing.T) {
	tmp := t.TempDir()
	env := []string{"TMPDIR=" + tmp}
	killed := start(t, env, "dev", "--listen", "127.0.0.1:0")
	killed.line("listening")
	dead := namesIn(t, tmp)
	killed.stop(syscall.SIGKILL)
	if got := namesIn(t, tmp); len(dead) != 1 || !slices.Equal(got, dead) {
		t.Fatalf("%v is there after the kill, and was %v", got, dead)
	}
	mine := []string{"pawl-dev-begun", "pawl-dev-mine", "pawl-other"}
	for _, name := range mine {
		if err := os.Mkdir(filepath.Join(tmp, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(tmp, "pawl-dev-begun", tempLock), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	one := start(t, env, "dev", "--listen", "127.0.0.1:0", "--topic", "orders")
	one.line("listening")
	addr := one.line("export      PAWL_BROKERS=")
	two := start(t, env, "dev", "--listen", "127.0.0.1:0")
	two.line("listening")
	got := namesIn(t, tmp)
	if slices.Contains(got, dead[0]) || len(got) != len(mine)+2 {
		t.Errorf("%v is there with two brokers, after %s was killed", got, dead[0])
	}
	if status, _, stderr := runAlone("produce", "orders", "--value", "v", "--brokers", addr); status != exitOK {
		t.Errorf("the first broker does not work any more: %s", stderr)
	}
	for _, s := range []*started{one, two} {
		if status := s.stop(syscall.SIGTERM); status != exitOK {
			t.Errorf("status %d: %s", status, s.stderr.String())
		}
	}
	if got := namesIn(t, tmp); !slices.Equal(got, mine) {
		t.Errorf("%v is left, want %v", got, mine)
	}
}

// A directory is in use as long as any process of the command that made it
// lives; and one that is kept for the user is never removed.
func TestTempDirIsSharedWithChildren(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	dir, err := makeTempDir("demo")
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command("cat")
	child.ExtraFiles = []*os.File{dir.lock}
	stdin, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	if err := dir.lock.Close(); err != nil { // as the end of the parent does
		t.Fatal(err)
	}
	removeDead("demo")
	if _, err := os.Stat(dir.path); err != nil {
		t.Errorf("with a child that lives: %v", err)
	}
	if err := stdin.Close(); err != nil {
		t.Fatal(err)
	}
	if err := child.Wait(); err != nil {
		t.Fatal(err)
	}
	removeDead("dev")
	if _, err := os.Stat(dir.path); err != nil {
		t.Errorf("a command of another kind has removed it: %v", err)
	}
	removeDead("demo")
	if _, err := os.Stat(dir.path); !os.IsNotExist(err) {
		t.Errorf("after the last process: %v, want it removed", err)
	}

	kept, err := makeTempDir("demo")
	if err != nil {
		t.Fatal(err)
	}
	if err := kept.keep(); err != nil {
		t.Fatal(err)
	}
	removeDead("demo")
	if _, err := os.Stat(kept.path); err != nil {
		t.Errorf("one that is kept: %v", err)
	}
}

// A directory that is kept for the user, between another's look at its lock and
// its taking it, had been removed.
func TestKeptDirectoryIsNotDead(t *testing.T) {
	name := filepath.Join(t.TempDir(), tempLock)
	if err := os.WriteFile(name, []byte("1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if !isAt(f, name) {
		t.Error("the lock is not the one at its name")
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	if isAt(f, name) {
		t.Error("a lock that was removed is the one at its name")
	}
	if err := os.WriteFile(name, []byte("2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if isAt(f, name) {
		t.Error("another's lock is the one at its name")
	}
}
