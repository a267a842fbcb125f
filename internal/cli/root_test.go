package cli

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/pawlstream/pawl/consumer"
)

func pawl(args ...string) (status int, stdout, stderr string) {
	var out, errs strings.Builder
	status = Run(args, strings.NewReader(""), &out, &errs)
	return status, out.String(), errs.String()
}

// A command line that is wrong is said to be, with what is nearest, and
// status 2.
func TestWrongCommandLines(t *testing.T) {
	for _, tt := range []struct {
		args string
		want string // the first line
	}{
		{"verson", `unknown command "verson": did you mean version?`},
		{"xyzzy", `unknown command "xyzzy"`},
		{"--verson", "unknown flag --verson"},
		{"--halp", "unknown flag --halp: did you mean --help?"},
		{"-x", "unknown flag -x"},
		{"version now", `unexpected argument "now"`},
		{"version --halp", "unknown flag --halp: did you mean --help?"},
	} {
		status, stdout, stderr := pawl(strings.Fields(tt.args)...)
		first, second, _ := strings.Cut(stderr, "\n")
		if status != 2 || stdout != "" || first != "pawl: "+tt.want {
			t.Errorf("pawl %s: status %d, stdout %q, stderr\n%s\nwant status 2, %s", tt.args, status, stdout, stderr, tt.want)
		}
		if !strings.HasPrefix(second, "pawl: see pawl ") || !strings.HasSuffix(second, "--help\n") || strings.Count(second, "\n") != 1 {
			t.Errorf("pawl %s: then stderr says %q, want where there is help", tt.args, second)
		}
	}
}

func TestHelp(t *testing.T) {
	for _, args := range [][]string{nil, {"--help"}, {"-h"}, {"help"}} {
		status, stdout, stderr := pawl(args...)
		if status != 0 || stderr != "" || !strings.Contains(stdout, "\n  version     Print the version\n") {
			t.Errorf("pawl %v: status %d, stderr %q, stdout\n%s\nwant the commands", args, status, stderr, stdout)
		}
	}
}

func TestVersion(t *testing.T) {
	status, stdout, stderr := pawl("version")
	if status != 0 || stderr != "" || !strings.HasPrefix(stdout, "pawl "+consumer.Version) || !strings.HasSuffix(stdout, fmt.Sprintf(", %s, %s/%s\n", runtime.Version(), runtime.GOOS, runtime.GOARCH)) {
		t.Errorf("pawl version: status %d, stderr %q, stdout %q", status, stderr, stdout)
	}
}

// What a command returns decides what pawl says and its status.
func TestStatuses(t *testing.T) {
	for _, tt := range []struct {
		err    error
		status int
		stderr string
	}{
		{nil, 0, ""},
		{errors.New("read input: EOF"), 1, "pawl: read input: EOF\n"},
		{errors.Join(errors.New("one"), errors.New("two")), 1, "pawl: one\npawl: two\n"},
		{errors.New("topic \x1b[2J\u202e: \"a\\n\"\tgone\xff"), 1, `pawl: topic \x1b[2J\u202e: "a\n"    gone\xff` + "\n"}, // nothing moves the cursor
		{statusError(1), 1, ""},
		{fmt.Errorf("demo: %w", statusError(3)), 3, ""},
	} {
		root := newRoot()
		root.AddCommand(&cobra.Command{Use: "try", RunE: func(*cobra.Command, []string) error { return tt.err }})
		var out, errs strings.Builder
		status := execute(root, []string{"try"}, strings.NewReader(""), &out, &errs)
		if status != tt.status || errs.String() != tt.stderr || out.String() != "" {
			t.Errorf("error %v: status %d, stderr %q, stdout %q, want %d, %q and nothing", tt.err, status, errs.String(), out.String(), tt.status, tt.stderr)
		}
	}
	root := newRoot()
	root.AddCommand(&cobra.Command{Use: "try", RunE: func(cmd *cobra.Command, _ []string) error { return usagef(cmd, "--kills is %d", -1) }})
	var errs strings.Builder
	status := execute(root, []string{"try"}, strings.NewReader(""), &errs, &errs)
	if want := "pawl: --kills is -1\npawl: see pawl try --help\n"; status != 2 || errs.String() != want {
		t.Errorf("usage error: status %d, stderr %q, want 2, %q", status, errs.String(), want)
	}
}

// A topic that is named twice is refused, and not done twice.
func TestTopicsAreNamedOnce(t *testing.T) {
	for _, args := range [][]string{{"consume", "a", "b", "a"}, {"topic", "create", "a", "a"}, {"topic", "delete", "a", "a", "--yes"}} {
		status, stdout, stderr := runAlone(append(args, "--brokers", "127.0.0.1:1")...)
		if status != exitUsage || stdout != "" || !strings.Contains(stderr, "a is named twice") {
			t.Errorf("pawl %v: status %d, %q, %q", args, status, stdout, stderr)
		}
	}
}
