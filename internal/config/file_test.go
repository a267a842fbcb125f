package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// writeFile writes a file of settings, and returns its name.
func writeFile(t testing.TB, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "settings.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// A file holds what flags and variables say, in the forms of YAML.
func TestReadFile(t *testing.T) {
	for _, tt := range []struct {
		text string
		want func(*values)
	}{
		{"", func(*values) {}},
		{"# nothing\n", func(*values) {}},
		{"drain: 5s", func(v *values) { v.Drain = 5e9 }},
		{"name: 007", func(v *values) { v.Name = "007" }},
		{"name: \"a: b # c\"", func(v *values) { v.Name = "a: b # c" }},
		{"brokers: [a:1, b:2]", func(v *values) { v.Brokers = []string{"a:1", "b:2"} }},
		{"brokers:\n  - a:1\n  - b:2", func(v *values) { v.Brokers = []string{"a:1", "b:2"} }},
		{"brokers: a:1,b:2", func(v *values) { v.Brokers = []string{"a:1", "b:2"} }},
		{"allow-old: true", func(v *values) { v.Old = true }},
		{"max-count: 3\nreplication: 2\n", func(v *values) { v.Count, v.Small = 3, 2 }},
		{"name: &n x\non-failure: retry", func(v *values) { v.Name, v.Policy = "x", "retry" }},
		{"elsewhere: 5", func(*values) {}},
	} {
		var got values
		if _, err := Read(got.table(), Input{Env: []string{"PAWL_CONFIG=" + writeFile(t, tt.text)}, Others: []string{"elsewhere"}}); err != nil {
			t.Errorf("%q: %v", tt.text, err)
			continue
		}
		want := defaults()
		tt.want(&want)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q: got + want -\n%s", tt.text, diff)
		}
	}
}

// A secret comes from the highest layer that has it or its file.
func TestSecretLayers(t *testing.T) {
	secret := writeFile(t, "of-a-file\n")
	file := writeFile(t, "sasl-password-file: "+secret)
	for _, tt := range []struct {
		args, env []string
		want      string
	}{
		{[]string{"--config", file}, nil, "of-a-file"},
		{[]string{"--config", file}, []string{"PAWL_SASL_PASSWORD=of-a-variable"}, "of-a-variable"},
		{[]string{"--sasl-password-file", secret}, []string{"PAWL_SASL_PASSWORD=of-a-variable"}, "of-a-file"},
		{[]string{"--config", file}, []string{"PAWL_SASL_PASSWORD_FILE=" + writeFile(t, "of-another")}, "of-another"},
	} {
		var v values
		if _, err := Read(v.table(), Input{Args: tt.args, Env: tt.env}); err != nil || v.Password != tt.want {
			t.Errorf("%q %q: %q, %v, want %q", tt.args, tt.env, v.Password, err, tt.want)
		}
	}
}

// Whatever is in a file, it is read or refused, and a secret that does not
// belong there is not shown.
func FuzzFile(f *testing.F) {
	for _, text := range []string{
		"drain: 5s\n", "brokers: [a:1, b:2]", "a: &x [1]\nb: *x", "? [a]\n: b", "<<: {a: b}", "sasl-password: hunter2", "drain: *hunter2",
		"\"\": x", "a: !!binary aGk=", "drain: 1s\ndrain: 2s", "- x", "--- \n--- \n", "name: |\n  two\n  lines\n", "\xff\xfe", "name: !!null x",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		name := writeFile(t, text)
		var v values
		_, err := Read(v.table(), Input{Env: []string{"PAWL_CONFIG=" + name}})
		if err == nil && (v.Drain <= 0 || v.Memory <= 0 || v.Count < 1) {
			t.Errorf("%q left %+v", text, v)
		}
		if err != nil && strings.HasPrefix(text, "sasl-password: hunter2") && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v shows the secret", text, err)
		}
		if _, err := ReadContexts(name); err != nil && !strings.Contains(err.Error(), name) {
			t.Errorf("%q as contexts: %v does not name the file", text, err)
		}
	})
}
