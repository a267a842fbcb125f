package pawl_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// settingsFile writes a file of settings, and returns its name.
func settingsFile(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "settings.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// A setting comes from its flag, or else its variable, or else the file, or
// else is the default, and --print-config says which.
func TestPrecedence(t *testing.T) {
	file := settingsFile(t, "drain: 7s\nmemory: 128MiB\n")
	for _, tt := range []struct {
		args, env []string
		want      string // in a line of its own
	}{
		{nil, nil, "drain: 30s # default"},
		{[]string{"--config", file}, nil, "drain: 7s # " + file + ":1"},
		{nil, []string{"PAWL_CONFIG=" + file}, "drain: 7s # " + file + ":1"},
		{[]string{"--config", file}, []string{"PAWL_CONFIG=/nowhere"}, "memory: 128MiB # " + file + ":2"},
		{[]string{"--config", file}, []string{"PAWL_DRAIN=8s"}, "drain: 8s # PAWL_DRAIN"},
		{[]string{"--config", file, "--drain=9s"}, []string{"PAWL_DRAIN=8s"}, "drain: 9s # --drain"},
		{nil, nil, "application: wordcount # default: the program's file name"},
		{[]string{"--application=x"}, nil, "application: x # --application"},
		{nil, []string{"GOMEMLIMIT=200MiB"}, "memory: 100MiB # default: half of GOMEMLIMIT"},
	} {
		status, stdout, stderr := program(t, append([]string{"--print-config"}, tt.args...), tt.env, counter{})
		found := false
		for line := range strings.Lines(stdout) {
			found = found || strings.Join(strings.Fields(line), " ") == tt.want
		}
		if status != 0 || stderr != "" || !found {
			t.Errorf("%q %q: status %d, stderr %q, want the line %q in\n%s", tt.args, tt.env, status, stderr, tt.want, stdout)
		}
	}
}

// What --print-config prints is a file of the same settings.
func TestPrintedSettingsAreSettings(t *testing.T) {
	args := []string{"--brokers=a:1,b:2", "--state-dir=/tmp/a b #c", "--application=orders", "--drain=31s", "--transaction-messages=5", "--accept-state-loss", "--instance=true", "--memory=99MiB"}
	_, first, _ := program(t, append(args, "--print-config"), nil, counter{})
	status, second, stderr := program(t, []string{"--print-config", "--config", settingsFile(t, first)}, nil, counter{})
	if status != 0 || stderr != "" {
		t.Fatalf("status %d, %s, of the settings\n%s", status, stderr, first)
	}
	values := func(text string) (lines []string) {
		for line := range strings.Lines(text) {
			// The level is given by the flag of every test.
			if value, _, _ := strings.Cut(line, " # "); !strings.HasPrefix(line, "# config") && !strings.HasPrefix(line, "log-level") {
				lines = append(lines, strings.TrimSpace(value))
			}
		}
		return lines
	}
	if got, want := strings.Join(values(second), "\n"), strings.Join(values(first), "\n"); got != want {
		t.Errorf("the settings\n%s\nare read as\n%s", want, got)
	}
}

func TestPrintConfigAsJSON(t *testing.T) {
	status, stdout, stderr := program(t, []string{"--print-config", "-o", "json", "--brokers=a:1,b:2", "--state-dir=/x", "--transaction-messages=5", "--allow-old-broker"}, nil, counter{})
	var settings []struct {
		Name, Source string
		Value        any
	}
	if err := json.Unmarshal([]byte(stdout), &settings); status != 0 || err != nil {
		t.Fatalf("status %d, %s, %v in\n%s", status, stderr, err, stdout)
	}
	got := make(map[string]string)
	for _, s := range settings {
		b, err := json.Marshal(s.Value)
		if err != nil {
			t.Fatal(err)
		}
		got[s.Name] = string(b) + " " + s.Source
	}
	for name, want := range map[string]string{
		"brokers": `["a:1","b:2"] --brokers`, "transaction-messages": "5 --transaction-messages", "allow-old-broker": "true --allow-old-broker",
		"commit-interval": `"100ms" default`, "sasl-password": "null ", "state-dir": `"/x" --state-dir`,
	} {
		if got[name] != want {
			t.Errorf("%s: %s, want %s", name, got[name], want)
		}
	}
}

// Each mistake in a file is one line that says where it is and what is right.
func TestMistakesInFiles(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"comit-interval: 1s", "FILE:1: unknown key comit-interval: did you mean commit-interval?"},
		{"commit_interval: 1s", "FILE:1: unknown key commit_interval: did you mean commit-interval?"},
		{"\n\ndrain: 20", `FILE:3: drain "20": want a unit with it: say 20s for seconds or 20ms for milliseconds`},
		{"drain: -1s", `FILE:1: drain "-1s": want a duration above zero`},
		{"drain: 5000000h", `FILE:1: drain "5000000h": want a duration such as 100ms, 30s or 5m`},
		{"drain: 20h", `FILE:1: drain "20h": drain timeout is 20h0m0s: want 10ms to 1h0m0s`},
		{"drain: 2ms", `FILE:1: drain "2ms": drain timeout is 2ms: want 10ms to 1h0m0s`},
		{"memory: 512", `FILE:1: memory "512": want a unit with it: say 512MiB for mebibytes or 512B for bytes`},
		{"allow-old-broker: yes", `FILE:1: allow-old-broker "yes": want true or false`},
		{"partitions: many", `FILE:1: partitions "many": want a whole number`},
		{"drain: [1s, 2s]", "FILE:1: drain: want one value, and not a list"},
		{"tls:\n  ca: x.pem", "FILE:1: tls: want a value, and not more keys: names are written whole, such as tls-ca"},
		{"drain:", "FILE:1: drain: it has no value: give it one, or leave the key out"},
		{"drain: 1s\n\ndrain: 2s", "FILE:3: drain is set twice, at first in line 1"},
		{"sasl-password: hunter2", "FILE:1: sasl-password: no secret is in this file: set PAWL_SASL_PASSWORD, or name a file of its own with sasl-password-file"},
		{"sasl-pasword: hunter2", "FILE:1: unknown key sasl-pasword: did you mean sasl-password-file?"},
		{"sasl-password: *hunter2", "FILE: unknown anchor referenced"},
		{"version: true", "FILE:1: unknown key version"},
		{"config: other.yaml", "FILE:1: unknown key config"},
		{"- drain", "FILE: want keys with values, such as name: value"},
		{"drain: 1s\n---\ndrain: 2s", "FILE: want one document, and a second begins"},
		{"a: b: c", "FILE: mapping values are not allowed in this context"},
		{"? [a]\n: b", "FILE:1: want a plain name as key"},
	} {
		file := settingsFile(t, tt.text)
		status, stdout, stderr := program(t, []string{"--config", file}, nil, counter{})
		first, _, _ := strings.Cut(stderr, "\n")
		first = strings.ReplaceAll(strings.TrimPrefix(first, "wordcount: "), file, "FILE")
		if tt.text == "a: b: c" {
			first = first[:min(len(first), len(tt.want))] // the parser says where, too
		}
		if status != 2 || stdout != "" || first != tt.want {
			t.Errorf("%q: status %d, stdout %q:\ngot  %s\nwant %s", tt.text, status, stdout, first, tt.want)
		}
		if strings.Contains(stderr, "hunter2") {
			t.Errorf("%q: the error shows the secret: %s", tt.text, stderr)
		}
	}
	missing := filepath.Join(t.TempDir(), "missing.yaml")
	if status, _, stderr := program(t, nil, []string{"PAWL_CONFIG=" + missing}, counter{}); status != 2 || !strings.HasPrefix(stderr, "wordcount: PAWL_CONFIG: open "+missing+": no such file or directory\n") {
		t.Errorf("missing file: status %d, %s", status, stderr)
	}
}

// A bare number is refused wherever it stands.
func TestBareNumbers(t *testing.T) {
	const want = `"20": want a unit with it: say 20s for seconds or 20ms for milliseconds`
	file := settingsFile(t, "stuck-after: 20")
	for _, tt := range []struct {
		args, env []string
		named     string
	}{
		{[]string{"--stuck-after=20"}, nil, "--stuck-after"},
		{nil, []string{"PAWL_STUCK_AFTER=20"}, "PAWL_STUCK_AFTER"},
		{[]string{"--config=" + file}, nil, file + ":1: stuck-after"},
	} {
		if status, _, stderr := program(t, tt.args, tt.env, counter{}); status != 2 || !strings.HasPrefix(stderr, "wordcount: "+tt.named+" "+want+"\n") {
			t.Errorf("%q %q: status %d, %s", tt.args, tt.env, status, stderr)
		}
	}
}

// No secret is printed, whatever prints it and whatever is wrong with it.
func TestSecretsAreNotPrinted(t *testing.T) {
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("hunter2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	sasl := []string{"--brokers=127.0.0.1:1", "--state-dir=" + dir, "--sasl-mechanism=PLAIN", "--sasl-username=ann"}
	for _, tt := range []struct {
		args, env []string
		shown     string
	}{
		{append(sasl, "--print-config"), []string{"PAWL_SASL_PASSWORD=hunter2"}, "# sasl-password: (hidden) # PAWL_SASL_PASSWORD"},
		{append(sasl, "--print-config", "--sasl-password-file", secret), nil, "sasl-password-file: " + secret + " # --sasl-password-file"},
		{append(sasl, "--print-config", "-o=json"), []string{"PAWL_SASL_PASSWORD=hunter2"}, `"value": "(hidden)",`},
		{[]string{"--print-config"}, []string{"PAWL_ADMIN_TOKEN=hunter2"}, "# admin-token: (hidden) # PAWL_ADMIN_TOKEN"},
		{sasl, []string{"PAWL_SASL_PASSWORD=hunter2\n"}, "wordcount: PAWL_SASL_PASSWORD: the SASL password holds a line break (read from a file that ends with one?)"},
		{append(sasl, "--sasl-mechanism=OAUTHBEARER"), []string{"PAWL_SASL_TOKEN=hunter2 x"}, "wordcount: PAWL_SASL_TOKEN: the SASL token holds a space, a line break or what is no ASCII"},
		{sasl, []string{"PAWL_SASL_PASSWORD=hunter2", "PAWL_SASL_PASSWORD_FILE=" + secret}, "wordcount: PAWL_SASL_PASSWORD and PAWL_SASL_PASSWORD_FILE are both set: one of them says it"},
		{sasl, []string{"PAWL_SASL_PASSWORD=hunter2"}, `nothing listens there`},
		{append(sasl, "--log-level=debug"), []string{"PAWL_SASL_PASSWORD=hunter2"}, `nothing listens there`},
	} {
		_, stdout, stderr := program(t, tt.args, tt.env, counter{})
		var all strings.Builder
		for line := range strings.Lines(stdout + stderr) {
			all.WriteString(strings.Join(strings.Fields(line), " ") + "\n")
		}
		if !strings.Contains(all.String(), tt.shown) {
			t.Errorf("%q %q: want %q in\n%s", tt.args, tt.env, tt.shown, all.String())
		}
		if strings.Contains(stdout+stderr, "hunter2") {
			t.Errorf("%q %q shows the secret:\n%s%s", tt.args, tt.env, stdout, stderr)
		}
	}
}

// A named context says how brokers are reached; the current one is for
// commands, and never sends a program to a cluster.
func TestContextOfAProgram(t *testing.T) {
	home := t.TempDir()
	dir := filepath.Join(home, "pawl")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(file, []byte("current: prod\ncontexts:\n  prod:\n    brokers: [p:1, q:2]\n    tls-server-name: kafka\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	xdg := "XDG_CONFIG_HOME=" + home
	for _, tt := range []struct {
		args, env []string
		want      string
	}{
		{nil, nil, "# brokers: not set (default: a broker within the process)"},
		{[]string{"--context=prod"}, nil, "brokers: ['p:1', 'q:2'] # context prod, " + file + ":4"},
		{[]string{"--context=prod"}, []string{"PAWL_BROKERS=other:1", "PAWL_TLS=false"}, "tls-server-name: kafka # context prod, " + file + ":5"},
		{nil, []string{"PAWL_CONTEXT=prod"}, "brokers: ['p:1', 'q:2'] # context prod, " + file + ":4"},
		{[]string{"--brokers=other:1"}, []string{"PAWL_CONTEXT=prod"}, "brokers: other:1 # --brokers"},
		{[]string{"--context=prod", "--brokers=x:1"}, nil, "wordcount: --context and --brokers both name a cluster: set one of them"},
		{[]string{"--context=prd"}, nil, `wordcount: --context "prd": ` + file + " has no such context: did you mean prod?"},
	} {
		_, stdout, stderr := program(t, append([]string{"--print-config", "--state-dir=/x"}, tt.args...), append(tt.env, xdg), counter{})
		found := false
		for line := range strings.Lines(stdout + stderr) {
			found = found || strings.Join(strings.Fields(line), " ") == tt.want
		}
		if !found {
			t.Errorf("%q %q: want the line %q in\n%s%s", tt.args, tt.env, tt.want, stdout, stderr)
		}
	}
}
