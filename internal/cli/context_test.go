package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// contexts gives a test contexts of its own, and returns their file.
func contexts(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", dir)
	return filepath.Join(dir, "pawl", "config.yaml")
}

// Contexts are added, chosen, shown and deleted, and what a file holds besides
// stays.
func TestContexts(t *testing.T) {
	file := contexts(t)
	t.Setenv("KAFKA_PASSWORD", "hunter2")
	for _, tt := range []struct {
		args   string
		status int
		want   string // all of it, with spaces as one
	}{
		{"context list", 0, "there are no contexts: pawl context add makes one"},
		{"context show", 2, "pawl: there is no current context: name one, or choose one with pawl context use pawl: see pawl context show --help"},
		{"context add prod --brokers a:1,b:2 --tls-ca ca.pem --sasl-mechanism scram-sha-512 --sasl-username ann --sasl-password-env KAFKA_PASSWORD --use", 0, ""},
		{"context add dev --brokers 127.0.0.1:9092", 0, ""},
		{"context add dev --brokers other:1", 2, "pawl: FILE has a context dev already pawl: see pawl context add --help"},
		{"context add dev --brokers other:1 --replace", 0, ""},
		{"context add x", 2, "pawl: no brokers are named: set --brokers pawl: see pawl context add --help"},
		{"context add a/b --brokers other:1", 2, `pawl: context "a/b": want letters, digits, hyphens, dots and underscores pawl: see pawl context add --help`},
		{"context add x --brokers other:1 --sasl-mechanism GSSAPI", 2, `pawl: --sasl-mechanism "GSSAPI": want PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER pawl: see pawl context add --help`},
		{"context add x --brokers other:1 --sasl-mechanism PLAIN --sasl-username ann --sasl-password-env A --sasl-password-file b", 2, "pawl: context x: sasl-password-env and sasl-password-file are both set: one of them says it pawl: see pawl context add --help"},
		{"context add x --brokers other:1 --sasl-password hunter2", 2, "pawl: unknown flag --sasl-password pawl: see pawl context add --help"},
		{"context add x --brokers other:1 --sasl-token-url https://id:hunter2@idp/token", 2, `pawl: --sasl-token-url "https://id:xxxxx@idp/token": it holds a user: a client's ID and secret are the SASL user name and password pawl: see pawl context add --help`},
		{"context list", 0, "CURRENT NAME BROKERS TLS SASL * prod a:1,b:2 yes SCRAM-SHA-512 ann - dev other:1 no -"},
		{"context use dve", 2, `pawl: FILE has no context "dve": did you mean dev? pawl: see pawl context use --help`},
		{"context use", 2, "pawl: want the name of one context, or --none pawl: see pawl context use --help"},
		{"context use dev", 0, ""},
		{"context show", 0, "brokers other:1"},
		{"context show -o json", 0, `{ "name": "dev", "current": true, "says": { "brokers": "other:1" } }`},
		{"context show prod", 0, "brokers a:1,b:2 tls-ca DIR/ca.pem sasl-mechanism SCRAM-SHA-512 sasl-username ann sasl-password-env KAFKA_PASSWORD"},
		{"context delete dev", 0, ""},
		{"context show", 2, "pawl: there is no current context: name one, or choose one with pawl context use pawl: see pawl context show --help"},
		{"context use prod", 0, ""},
		{"context use --none", 0, ""},
		{"context list", 0, "CURRENT NAME BROKERS TLS SASL - prod a:1,b:2 yes SCRAM-SHA-512 ann"},
	} {
		status, stdout, stderr := pawl(strings.Fields(tt.args)...)
		dir, err := os.Getwd()
		if err != nil {
			t.Fatal(err)
		}
		got := strings.NewReplacer(file, "FILE", dir, "DIR").Replace(strings.Join(strings.Fields(stdout+stderr), " "))
		if status != tt.status || got != tt.want {
			t.Errorf("pawl %s:\ngot  %d, %s\nwant %d, %s", tt.args, status, got, tt.status, tt.want)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil || strings.Contains(string(text), "hunter2") {
		t.Errorf("the file, %v, holds the secret:\n%s", err, text)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file's mode is %v, %v, want that only its owner reads it", info.Mode(), err)
	}
}

// What a person has written in the file stays there.
func TestContextsKeepComments(t *testing.T) {
	file := contexts(t)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("# ours\ncontexts:\n  a: # the old one\n    brokers: [a:1]\n  b:\n    brokers: [b:1]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{"context use b", "context add c --brokers c:1", "context delete b"} {
		if status, _, stderr := pawl(strings.Fields(args)...); status != 0 {
			t.Fatalf("pawl %s: %d %s", args, status, stderr)
		}
	}
	want := "# ours\ncontexts:\n  a: # the old one\n    brokers: ['a:1']\n  c:\n    brokers: c:1\n"
	if got, err := os.ReadFile(file); err != nil || string(got) != want {
		t.Errorf("the file is\n%s%v, want\n%s", got, err, want)
	}
}

// A command uses the context that is named, or the current one if it names no
// brokers, and only flags change what that says: no password goes elsewhere.
func TestContextOfACommand(t *testing.T) {
	file := contexts(t)
	t.Setenv("KAFKA_PASSWORD", "hunter2")
	for _, args := range []string{
		"context add prod --brokers a:1,b:2 --sasl-mechanism PLAIN --sasl-username ann --sasl-password-env KAFKA_PASSWORD --use",
		"context add bare --brokers c:1 --sasl-mechanism PLAIN --sasl-username bob",
	} {
		if status, _, stderr := pawl(strings.Fields(args)...); status != 0 {
			t.Fatalf("pawl %s: %d %s", args, status, stderr)
		}
	}
	for _, tt := range []struct {
		args string
		env  []string // name and value
		want []string // lines
		not  string
	}{
		{"", nil, []string{"brokers: ['a:1', 'b:2'] # context prod, FILE:3", "# sasl-password: (hidden) # context prod, KAFKA_PASSWORD"}, ""},
		{"--brokers x:1", nil, []string{"brokers: x:1 # --brokers", "# sasl-username: not set", "# sasl-password: not set"}, "ann"},
		{"", []string{"PAWL_BROKERS", "x:1"}, []string{"brokers: x:1 # PAWL_BROKERS", "# sasl-password: not set"}, "ann"},
		{"--context bare", []string{"PAWL_SASL_PASSWORD", "hunter2"}, []string{"brokers: c:1 # context bare, FILE:8", "# sasl-password: (hidden) # PAWL_SASL_PASSWORD"}, "ann"},
		{"--context prod", []string{"PAWL_SASL_PASSWORD", "hunter2"}, []string{"# sasl-password: (hidden) # context prod, KAFKA_PASSWORD"}, ""},
		{"--context prod", []string{"PAWL_TLS", "true"}, []string{"# tls: not set"}, ""},
		{"--context prod --tls", nil, []string{"tls: true # --tls"}, ""},
		{"--context prod", []string{"PAWL_BROKERS", "x:1"}, []string{"brokers: ['a:1', 'b:2'] # context prod, FILE:3"}, ""},
		{"--context prod --brokers x:1", nil, []string{"pawl: --context and --brokers both name a cluster: set one of them"}, ""},
		{"--brokers x:1", []string{"PAWL_CONTEXT", "prod"}, []string{"brokers: x:1 # --brokers"}, "ann"},
		{"", []string{"PAWL_CONTEXT", "bare"}, []string{"brokers: c:1 # context bare, FILE:8"}, "ann"},
		{"", []string{"PAWL_STATE_DIR", "/a/programs"}, []string{"brokers: ['a:1', 'b:2'] # context prod, FILE:3"}, ""},
		{"", []string{"PAWL_BROKER", "x:1"}, []string{"pawl: unknown variable PAWL_BROKER: did you mean PAWL_BROKERS?"}, ""},
	} {
		t.Run(tt.args+strings.Join(tt.env, "="), func(t *testing.T) {
			if tt.env != nil {
				t.Setenv(tt.env[0], tt.env[1])
			}
			_, stdout, stderr := pawl(append([]string{"topic", "list", "--print-config"}, strings.Fields(tt.args)...)...)
			lines := make(map[string]bool)
			for line := range strings.Lines(strings.ReplaceAll(stdout+stderr, file, "FILE")) {
				lines[strings.Join(strings.Fields(line), " ")] = true
			}
			for _, want := range tt.want {
				if !lines[want] {
					t.Errorf("want the line %q in\n%s%s", want, stdout, stderr)
				}
			}
			if strings.Contains(stdout+stderr, "hunter2") || tt.not != "" && strings.Contains(stdout+stderr, tt.not) {
				t.Errorf("it shows a secret, or what is another's:\n%s%s", stdout, stderr)
			}
		})
	}
}

// A file that is wrong is said to be, with the line.
func TestMistakesInContexts(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"curent: a", "FILE:1: unknown key curent: did you mean current?"},
		{"current: b\ncontexts:\n  a:\n    brokers: [x:1]", `FILE: current "b": FILE has no such context: did you mean a?`},
		{"current: a\ncontexts:\n  a:\n    broker: [x:1]", "FILE:4: context a: unknown key broker: did you mean brokers?"},
		{"current: a\ncontexts:\n  a:\n    sasl-password: hunter2", "FILE:4: context a: sasl-password: no secret is in this file: name a variable that holds it with sasl-password-env, or a file of its own with sasl-password-file"},
		{"current: a\ncontexts:\n  a:\n    sasl-password-env: NO_SUCH", "FILE:4: context a: sasl-password-env: the variable NO_SUCH is not set"},
		{"current: a\ncontexts:\n  a:\n    config: x", "FILE:4: context a: unknown key config"},
		{"current: a\ncontexts:\n  a: x", "FILE:3: a: want keys with values, such as name: value"},
		{"current: a\ncontexts: x", "FILE:2: contexts: want keys with values, such as name: value"},
		{"current: [a]", "FILE:1: current: want one value, and not a list"},
		{"a: [", "FILE: line 1: did not find expected node content"},
	} {
		file := contexts(t)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		status, stdout, stderr := pawl("topic", "list")
		first, _, _ := strings.Cut(strings.ReplaceAll(stderr, file, "FILE"), "\n")
		if status != 2 || stdout != "" || first != "pawl: "+tt.want || strings.Contains(stderr, "hunter2") {
			t.Errorf("%q: status %d, stdout %q:\ngot  %s\nwant pawl: %s", tt.text, status, stdout, first, tt.want)
		}
	}
}
