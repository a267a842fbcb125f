package invariants_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/pawlstream/pawl/internal/invariants"
)

// The test binary, started again with this variable set, passes the point
// "step" so many times, printing the number of each pass before it.
const passes = "PAWL_TEST_PASSES"

func TestMain(m *testing.M) {
	if s := os.Getenv(passes); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			panic(err)
		}
		for i := range n {
			fmt.Println(i + 1)
			invariants.Crash("step")
		}
		fmt.Println("end")
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child returns the command of a process that passes "step" three times.
func child(t *testing.T, crash string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), passes+"=3", "PAWL_CRASH="+crash)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	return cmd, &out
}

const all = "1\n2\n3\nend\n"

func TestCrashKills(t *testing.T) {
	for _, tt := range []struct {
		crash  string
		want   string // what the child prints
		killed bool
	}{
		{"", all, false},
		{"another", all, false},
		{"another:1", all, false},
		{"step", "1\n", true},
		{"step:1", "1\n", true},
		{"step:3", "1\n2\n3\n", true},
		{"step:4", all, false},
	} {
		t.Run(tt.crash, func(t *testing.T) {
			want, killed := tt.want, tt.killed
			if !invariants.Enabled { // without the tag a point is nothing
				want, killed = all, false
			}
			cmd, out := child(t, tt.crash)
			err := cmd.Run()
			if got := out.String(); got != want {
				t.Errorf("it printed %q, want %q", got, want)
			}
			if got := signalOf(err); killed && got != syscall.SIGKILL || !killed && err != nil {
				t.Errorf("it ended with %v, want killed: %t", err, killed)
			}
		})
	}
}

func signalOf(err error) syscall.Signal {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return 0
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	if !ok || !status.Signaled() {
		return 0
	}
	return status.Signal()
}

// A misspelt number must not make a test pass that never crashed anything.
func TestCrashMisspelt(t *testing.T) {
	if !invariants.Enabled {
		t.Skip("needs the build tag invariants") // without it nothing to test is compiled in; make test sets it
	}
	for _, crash := range []string{"step:0", "step:-1", "step:x", "step:"} {
		cmd, out := child(t, crash)
		if err := cmd.Run(); err == nil || !strings.Contains(out.String(), "want NAME or NAME:N") {
			t.Errorf("PAWL_CRASH=%s: %v, and it printed %q; want a panic that says what is wrong", crash, err, out)
		}
	}
}

// With stop= the process freezes at the point, and goes on from there.
func TestCrashStops(t *testing.T) {
	if !invariants.Enabled {
		t.Skip("needs the build tag invariants") // without it nothing to test is compiled in; make test sets it
	}
	cmd, out := child(t, "stop=step:2")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(cmd.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil {
		t.Fatal(err)
	}
	if !status.Stopped() || status.StopSignal() != syscall.SIGSTOP {
		t.Fatalf("wait status %#x, want stopped by SIGSTOP", status)
	}
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("after it was continued: %v", err)
	}
	if got := out.String(); got != all {
		t.Errorf("it printed %q, want %q", got, all)
	}
}

func TestArm(t *testing.T) {
	passed := 0
	disarm := invariants.Arm("armed", func() { passed++ })
	again := invariants.Arm("armed too", func() { passed += 10 })
	invariants.Crash("armed")
	invariants.Crash("unarmed")
	invariants.Crash("armed")
	disarm()
	invariants.Crash("armed")
	invariants.Crash("armed too")
	again()

	want := 12
	if !invariants.Enabled {
		want = 0
	}
	if passed != want {
		t.Errorf("passed %d, want %d", passed, want)
	}
}

// What is armed runs without the lock: it may arm, disarm and pass points.
func TestArmWithin(t *testing.T) {
	var inner int
	var disarm func()
	disarm = invariants.Arm("outer", func() {
		disarm()
		defer invariants.Arm("inner", func() { inner++ })()
		invariants.Crash("inner")
		invariants.Crash("outer")
	})
	invariants.Crash("outer")
	disarm()

	want := 1
	if !invariants.Enabled {
		want = 0
	}
	if inner != want {
		t.Errorf("passed the inner point %d times, want %d", inner, want)
	}
}

func TestCheck(t *testing.T) {
	invariants.Check(true, "fine")
	defer func() {
		got, want := recover(), any("invariant: low 3 passed 2")
		if !invariants.Enabled {
			want = nil
		}
		if got != want {
			t.Errorf("panic %v, want %v", got, want)
		}
	}()
	invariants.Check(false, "low %d passed %d", 3, 2)
}
