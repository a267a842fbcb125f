package cli

import (
	"os"
	"strings"
	"syscall"
	"testing"
)

// The broker to try things on, and the copy of a broker's data, take their
// settings as every program does: from flags, variables, a file that serve may
// share, and defaults, in this order, and say from where.
func TestDevAndBackupSettings(t *testing.T) {
	t.Chdir(t.TempDir())
	const file = "dir: data\nto: copy\nlisten: 127.0.0.1:1\nfree-space: 1MiB\ntopic: [\"orders:3\", totals]\nset: [log.retention.ms=1000]\nlog-level: info\nbrokers: [others:1]\n"
	if err := os.WriteFile("pawl.yaml", []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PAWL_LISTEN", "127.0.0.1:2")
	t.Setenv("PAWL_LOG_LEVEL", "debug")
	t.Setenv("PAWL_TO", "elsewhere")
	for _, tt := range []struct {
		args []string
		want []string
	}{
		{[]string{"dev"}, []string{"listen: 127.0.0.1:2 # PAWL_LISTEN", "topic: ['orders:3', totals] # pawl.yaml:5", "set: log.retention.ms=1000 # pawl.yaml:6", "log-level: debug # PAWL_LOG_LEVEL"}},
		{[]string{"dev", "--listen", "127.0.0.1:3", "--topic", "a", "--topic", "b:2"}, []string{"listen: 127.0.0.1:3 # --listen", "topic: [a, 'b:2'] # --topic"}},
		{[]string{"backup"}, []string{"dir: data # pawl.yaml:1", "to: elsewhere # PAWL_TO"}},
		{[]string{"backup", "--dir", "mine"}, []string{"dir: mine # --dir", "to: elsewhere # PAWL_TO"}},
		{[]string{"backup", "-o", "json"}, []string{`"PAWL_TO"`}},
	} {
		status, stdout, stderr := pawl(append(tt.args, "--print-config")...)
		got := strings.Join(strings.Fields(stdout), " ")
		for _, want := range tt.want {
			if status != exitOK || stderr != "" || !strings.Contains(got, want) {
				t.Errorf("%v: status %d, %q, want %s in\n%s", tt.args, status, stderr, want, stdout)
			}
		}
	}
	for _, tt := range []struct{ command, file, want string }{
		{"dev", "lisen: 127.0.0.1:0", "pawl.yaml:1: unknown key lisen: did you mean listen?"},
		{"dev", "topic: [\"orders:0\"]", `pawl.yaml:1: topic "orders:0": want NAME or NAME:PARTITIONS`},
		{"dev", "set: [a=1, a=2]", "pawl.yaml:1: set names a twice"},
		{"dev", "listen: 0.0.0.0:9092", "pawl.yaml:1: listen 0.0.0.0:9092: others can reach this address"},
		{"dev", "log-level: loud", `pawl.yaml:1: log-level "loud": want debug, info, warn or error`},
		{"backup", "dri: data", "pawl.yaml:1: unknown key dri: did you mean dir?"},
		{"backup", "to: copy", "--dir is not set"},
		{"backup", "dir: data", "--to is not set"},
		{"backup -o json", "dir: data\nto: copy", "--output is for --print-config, which is not set"},
	} {
		t.Setenv("PAWL_LISTEN", "")
		t.Setenv("PAWL_LOG_LEVEL", "")
		t.Setenv("PAWL_TO", "")
		if err := os.WriteFile("pawl.yaml", []byte(tt.file+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if status, _, stderr := pawl(strings.Fields(tt.command)...); status != exitUsage || !strings.Contains(stderr, tt.want) {
			t.Errorf("%s with %q: status %d, %q, want %q", tt.command, tt.file, status, stderr, tt.want)
		}
	}

	// What a broker was started with is what is backed up.
	serving(t, "data").stop(syscall.SIGTERM)
	if err := os.WriteFile("pawl.yaml", []byte("dir: data\nto: copy\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if status, stdout, stderr := pawl("backup"); status != exitOK || stderr != "" {
		t.Errorf("backup: status %d, %q, %q", status, stdout, stderr)
	}
	if files, err := os.ReadDir("copy"); err != nil || len(files) == 0 {
		t.Errorf("the copy holds %v, %v", files, err)
	}
}
