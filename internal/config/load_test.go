package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

type policy string

// values is a program's settings, with one of each kind.
type values struct {
	Name     string
	Brokers  []string
	Drain    time.Duration
	Memory   int64
	Count    int
	Small    int16
	Old      bool
	Policy   policy
	Password string
	Version  bool
}

func (v *values) table() []Setting {
	return []Setting{
		{Name: "name", Value: Text(&v.Name, "NAME"), Help: "a name"},
		{Name: "brokers", Value: List(&v.Brokers, "HOST:PORT"), Unset: "none", Help: "brokers"},
		{Name: "drain", Value: Duration(&v.Drain), Default: "30s", Help: "time for a stop"},
		{Name: "memory", Value: Bytes(&v.Memory), Default: "512MiB", Help: "budget"},
		{Name: "max-count", Value: Int(&v.Count, 1), Default: "7", Help: "a number"},
		{Name: "replication", Value: Int(&v.Small, 1), Help: "a small number"},
		{Name: "allow-old", Value: Bool(&v.Old), Help: "a switch"},
		{Name: "on-failure", Value: Choice(&v.Policy, "stop", "retry", "dead-letter"), Default: "stop", Help: "a policy"},
		{Name: "sasl-password", Value: Text(&v.Password, "PASSWORD"), Secret: true, Help: "the password"},
		{Name: "version", Value: Bool(&v.Version), FlagOnly: true, Help: "print the version"},
	}
}

func defaults() values {
	return values{Drain: 30 * time.Second, Memory: 512 << 20, Count: 7, Policy: "stop"}
}

func TestRead(t *testing.T) {
	for _, tt := range []struct {
		name string
		args []string
		env  []string
		want func(*values)
	}{
		{"defaults", nil, nil, func(*values) {}},
		{"variable over default", nil, []string{"PAWL_DRAIN=5s"}, func(v *values) { v.Drain = 5 * time.Second }},
		{"flag over variable", []string{"--drain", "7s"}, []string{"PAWL_DRAIN=5s"}, func(v *values) { v.Drain = 7 * time.Second }},
		{"flag over a variable that is wrong", []string{"--drain=7s"}, []string{"PAWL_DRAIN=x"}, func(v *values) { v.Drain = 7 * time.Second }},
		{"the last flag counts", []string{"--drain=7s", "--drain=8s"}, nil, func(v *values) { v.Drain = 8 * time.Second }},
		{"list", []string{"--brokers", "a:1, b:2", "--brokers", "c:3"}, []string{"PAWL_BROKERS=d:4"}, func(v *values) { v.Brokers = []string{"a:1", "b:2", "c:3"} }},
		{"list in a variable", nil, []string{"PAWL_BROKERS=a:1,b:2"}, func(v *values) { v.Brokers = []string{"a:1", "b:2"} }},
		{"flag alone is true", []string{"--allow-old"}, nil, func(v *values) { v.Old = true }},
		{"flag says false", []string{"--allow-old=false"}, []string{"PAWL_ALLOW_OLD=true"}, func(*values) {}},
		{"hyphens are underscores", nil, []string{"PAWL_ON_FAILURE=dead-letter", "PAWL_MAX_COUNT=3"}, func(v *values) { v.Policy, v.Count = "dead-letter", 3 }},
		{"empty variable is not set", nil, []string{"PAWL_DRAIN=", "PAWL_NOSUCH="}, func(*values) {}},
		{"empty flag is", []string{"--name="}, []string{"PAWL_NAME=x"}, func(*values) {}},
		{"others' variables", nil, []string{"HOME=/", "PAWLESS=1", "pawl_drain=1", "PAWL_CRASH=x:3", "PAWL_TEST_KAFKA=h:1", "PAWL_KAFKA_CACHE=/x", "PAWL_SEED=1"}, func(*values) {}},
		{"variables of Kubernetes", nil, []string{"PAWL_SERVICE_HOST=10.0.0.1", "PAWL_SERVICE_PORT=80", "PAWL_UI_SERVICE_PORT_HTTP=80", "PAWL_PORT=tcp://10.0.0.1:80", "PAWL_PORT_80_TCP=tcp://10.0.0.1:80", "PAWL_UI_PORT_80_TCP_ADDR=10.0.0.1"}, func(*values) {}},
		{"secret", nil, []string{"PAWL_SASL_PASSWORD=a=b,c "}, func(v *values) { v.Password = "a=b,c " }},
		{"flag without variable", []string{"--version"}, nil, func(v *values) { v.Version = true }},
		{"value with an equals sign", []string{"--name", "a=b"}, []string{"PAWL_NAME=c=d"}, func(v *values) { v.Name = "a=b" }},
		{"value that looks like a flag", []string{"--name=--drain"}, nil, func(v *values) { v.Name = "--drain" }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got values
			if _, err := Read(got.table(), Input{Args: tt.args, Env: tt.env}); err != nil {
				t.Fatalf("Read(%q, %q): %v", tt.args, tt.env, err)
			}
			want := defaults()
			tt.want(&want)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("Read(%q, %q): got + want -\n%s", tt.args, tt.env, diff)
			}
		})
	}
}

func TestReadErrors(t *testing.T) {
	for _, tt := range []struct {
		args []string
		env  []string
		want string // all of it
	}{
		{[]string{"--drian", "20s"}, nil, "unknown flag --drian: did you mean --drain?"},
		{[]string{"--drian=20s"}, nil, "unknown flag --drian: did you mean --drain?"},
		{[]string{"-drain", "20s"}, nil, "unknown flag -drain: did you mean --drain?"},
		{[]string{"--xyzzy"}, nil, "unknown flag --xyzzy"},
		{[]string{"--broker", "a:1"}, nil, "unknown flag --broker: did you mean --brokers?"},
		{nil, []string{"PAWL_DRIAN=20s"}, "unknown variable PAWL_DRIAN: did you mean PAWL_DRAIN?"},
		{nil, []string{"PAWL_BROKER=a:1"}, "unknown variable PAWL_BROKER: did you mean PAWL_BROKERS?"},
		{nil, []string{"PAWL_VERSION=1"}, "unknown variable PAWL_VERSION"},
		{[]string{"--drain", "20"}, nil, `--drain "20": want a unit with it: say 20s for seconds or 20ms for milliseconds`},
		{nil, []string{"PAWL_DRAIN=soon"}, `PAWL_DRAIN "soon": want a duration such as 100ms, 30s or 5m`},
		{[]string{"--drain", "0s"}, nil, `--drain "0s": want a duration above zero`},
		{[]string{"--drain", "-1s"}, nil, `--drain "-1s": want a duration above zero`},
		{[]string{"--drain="}, nil, `--drain "": want a duration such as 100ms, 30s or 5m`},
		{[]string{"--drain"}, nil, "flag needs an argument: --drain"},
		{[]string{"--memory", "lots"}, nil, `--memory "lots": want a size such as 64MiB or 1.5GiB`},
		{[]string{"--memory=-1"}, nil, `--memory "-1": want a size such as 64MiB or 1.5GiB`},
		{[]string{"--memory=0"}, nil, `--memory "0": want a unit with it: say 0MiB for mebibytes or 0B for bytes`},
		{[]string{"--memory=9999999TiB"}, nil, `--memory "9999999TiB": want a smaller size`},
		{[]string{"--max-count=many"}, nil, `--max-count "many": want a whole number`},
		{[]string{"--max-count=0"}, nil, `--max-count "0": want at least 1`},
		{[]string{"--replication=40000"}, nil, `--replication "40000": want a smaller number`},
		{[]string{"--max-count=99999999999999999999"}, nil, `--max-count "99999999999999999999": want a smaller number`},
		{[]string{"--allow-old=perhaps"}, nil, `--allow-old "perhaps": want true or false`},
		{nil, []string{"PAWL_ON_FAILURE=ignore"}, `PAWL_ON_FAILURE "ignore": want stop, retry or dead-letter`},
		{[]string{"--brokers=a:1,,b:2"}, nil, `--brokers "a:1,,b:2": want items between commas, none of them empty`},
		{[]string{"start"}, nil, `unexpected argument "start": want only flags`},
		{
			[]string{"--drian", "1s", "--max-count=many", "--memry", "--on-failure", "ignore"}, []string{"PAWL_DRIAN=1", "PAWL_REPLICATION=x"},
			"unknown flag --drian: did you mean --drain?\n" +
				"unknown flag --memry: did you mean --memory?\n" +
				"unknown variable PAWL_DRIAN: did you mean PAWL_DRAIN?\n" +
				"--max-count \"many\": want a whole number\n" +
				"PAWL_REPLICATION \"x\": want a whole number\n" +
				"--on-failure \"ignore\": want stop, retry or dead-letter",
		},
	} {
		var v values
		_, err := Read(v.table(), Input{Args: tt.args, Env: tt.env})
		if err == nil || err.Error() != tt.want {
			t.Errorf("Read(%q, %q):\ngot  %v\nwant %s", tt.args, tt.env, err, tt.want)
		}
	}
}

// A password is read from where others don't see it, and is shown nowhere.
func TestSecret(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	for text, want := range map[string]string{"hunter2": "hunter2", "hunter2\n": "hunter2", "hunter2\r\n": "hunter2", " hunter2 \n": " hunter2 ", "hunter2\n\n": "hunter2\n"} {
		var v values
		if _, err := Read(v.table(), Input{Args: []string{"--sasl-password-file", file("password", text)}}); err != nil || v.Password != want {
			t.Errorf("file of %q: password %q, error %v, want %q", text, v.Password, err, want)
		}
	}
	var v values
	if _, err := Read(v.table(), Input{Env: []string{"PAWL_SASL_PASSWORD_FILE=" + file("other", "x")}}); err != nil || v.Password != "x" {
		t.Errorf("variable that names a file: password %q, error %v, want x", v.Password, err)
	}

	empty := file("empty", "\n")
	for _, tt := range []struct {
		args []string
		env  []string
		want string
	}{
		{[]string{"--sasl-password", "hunter2"}, nil, "there is no flag --sasl-password, since others could see it: set PAWL_SASL_PASSWORD, or name a file with --sasl-password-file"},
		{[]string{"--sasl-password=hunter2"}, nil, "there is no flag --sasl-password, since others could see it: set PAWL_SASL_PASSWORD, or name a file with --sasl-password-file"},
		{[]string{"--sasl-pasword=hunter2"}, nil, "unknown flag --sasl-pasword: did you mean --sasl-password-file?"},
		{[]string{"--sasl-password-file=/dev/zero"}, nil, "--sasl-password-file: read sasl password: /dev/zero is longer than 65536 bytes"},
		{[]string{"--sasl-password-file=" + empty}, nil, `--sasl-password-file "` + empty + `": the file is empty`},
		{nil, []string{"PAWL_SASL_PASSWORD_FILE=" + empty, "PAWL_SASL_PASSWORD=hunter2"}, "PAWL_SASL_PASSWORD and PAWL_SASL_PASSWORD_FILE are both set: one of them says it"},
		{nil, []string{"PAWL_SASL_PASWORD=hunter2"}, "unknown variable PAWL_SASL_PASWORD: did you mean PAWL_SASL_PASSWORD?"},
	} {
		var v values
		_, err := Read(v.table(), Input{Args: tt.args, Env: tt.env})
		if err == nil || err.Error() != tt.want {
			t.Errorf("Read(%q, %q):\ngot  %v\nwant %s", tt.args, tt.env, err, tt.want)
		}
	}
	_, err := Read(v.table(), Input{Args: []string{"--sasl-password-file=" + filepath.Join(dir, "missing")}})
	if !errors.Is(err, os.ErrNotExist) || !strings.HasPrefix(err.Error(), "--sasl-password-file: read sasl password: ") {
		t.Errorf("missing file: %v, want one that names the flag and that it does not exist", err)
	}
}

func TestHelp(t *testing.T) {
	for _, arg := range []string{"--help", "-h"} {
		var v values
		if _, err := Read(v.table(), Input{Args: []string{"--drain=1s", arg}}); !errors.Is(err, ErrHelp) {
			t.Errorf("Read with %s: %v, want ErrHelp", arg, err)
		}
	}
	var v values
	usage := Usage(v.table())
	for _, want := range []string{
		"  --brokers HOST:PORT,…           brokers (default: none)\n",
		"  --drain DURATION                time for a stop (default: 30s)\n",
		"  --allow-old                     a switch\n",
		"  --on-failure stop|retry|dead-letter\n                                  a policy (default: stop)\n",
		"  PAWL_SASL_PASSWORD              the password\n",
		"  --sasl-password-file FILE       ",
	} {
		if !strings.Contains(usage, want) {
			t.Errorf("the usage has no line\n%s\nin\n%s", want, usage)
		}
	}
	if strings.Contains(usage, "--sasl-password ") {
		t.Errorf("the usage shows a flag for a secret:\n%s", usage)
	}
}

// What a program is called with is not in its hands.
func FuzzRead(f *testing.F) {
	f.Add("--drain=20s", "--brokers", "a:1", "PAWL_MEMORY=1.5GiB")
	f.Add("--sasl-password", "hunter2", "-x", "PAWL_SASL_PASSWORD_FILE=/")
	f.Add("--", "-", "--=", "PAWL_=")
	f.Add("--no\nsuch", "-h=", "--drain", "PAWL_DRAIN")
	f.Fuzz(func(t *testing.T, a, b, c, env string) {
		var v values
		// It returns, and says something or fills all in.
		if _, err := Read(v.table(), Input{Args: []string{a, b, c}, Env: []string{env}}); err == nil && (v.Drain <= 0 || v.Memory <= 0 || v.Count < 1) {
			t.Errorf("Read(%q, %q, %q; %q) left %+v", a, b, c, env, v)
		}
	})
}
