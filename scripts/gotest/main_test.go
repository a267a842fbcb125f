package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Each case is a module of one package, tested by the go command itself.
func TestRun(t *testing.T) {
	for _, tt := range []struct {
		name, test string
		wantErr    string   // what the error holds; empty for none
		want       []string // what is shown
		wantNot    []string // what is not
	}{
		{
			name:    "passes",
			test:    `func TestA(t *testing.T) { t.Log("quiet") }`,
			want:    []string{"ok  \texample.com/m"},
			wantNot: []string{"quiet", "=== RUN", "skipped"},
		},
		{
			name:    "fails",
			test:    `func TestA(t *testing.T) { t.Run("sub", func(t *testing.T) { t.Error("got 1, want 2") }) }; func TestB(t *testing.T) { t.Log("quiet") }`,
			wantErr: "exit status 1",
			want:    []string{"got 1, want 2", "--- FAIL: TestA/sub", "FAIL\texample.com/m"},
			wantNot: []string{"quiet"},
		},
		{
			name:    "panics",
			test:    `func TestA(t *testing.T) { panic("oh no") }`,
			wantErr: "exit status 1",
			want:    []string{"panic: oh no", "FAIL\texample.com/m"},
		},
		{
			name:    "ends without a word",
			test:    `func TestA(t *testing.T) { println("last words"); os.Exit(3) }`,
			wantErr: "exit status 1",
			want:    []string{"last words", "FAIL\texample.com/m"},
		},
		{
			name:    "does not compile",
			test:    `func TestA(t *testing.T) { undefined() }`,
			wantErr: "exit status 1",
			want:    []string{"undefined: undefined", "FAIL\texample.com/m [build failed]"},
		},
		{
			name:    "skips for want of a tag",
			test:    `func TestA(t *testing.T) { t.Run("in a bubble", func(t *testing.T) { t.Skip("needs the build tag synctests") }) }`,
			wantErr: "1 tests skipped for want of a build tag: example.com/m.TestA/in_a_bubble",
			want:    []string{"ok  \texample.com/m", "skipped  example.com/m.TestA/in_a_bubble"},
		},
		{
			name:    "skips, saying how to run it",
			test:    `func TestA(t *testing.T) { t.Skip("run with -tags synctests") }`,
			wantErr: "1 tests skipped for want of a build tag: example.com/m.TestA",
			want:    []string{"run with -tags synctests"},
		},
		{
			name:    "skips in a bubble",
			test:    `func TestA(t *testing.T) { synctest.Test(t, func(t *testing.T) { t.Skip("needs the build tag synctests") }) }`,
			wantErr: "1 tests skipped for want of a build tag: example.com/m.TestA",
			want:    []string{"ok  \texample.com/m", "skipped  example.com/m.TestA: "},
		},
		{
			name: "skips for another reason",
			test: `func TestA(t *testing.T) { t.Skip("no disk to fill") }; func TestB(t *testing.T) { t.SkipNow() }`,
			want: []string{"ok  \texample.com/m", "no disk to fill", "skipped  example.com/m.TestB: no reason given"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range map[string]string{
				"go.mod":    "module example.com/m\n\ngo 1.26\n",
				"m_test.go": "package m\n\nimport (\n\t\"os\"\n\t\"testing\"\n\t\"testing/synctest\"\n)\n\nvar _, _ = os.Exit, synctest.Wait\n\n" + tt.test + "\n",
			} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666); err != nil {
					t.Fatal(err)
				}
			}
			t.Chdir(dir)
			t.Setenv("GOFLAGS", "-mod=mod") // whatever the run around this one is given
			t.Setenv("GOWORK", "off")

			var out, stderr bytes.Buffer
			err := run([]string{"./..."}, &out, &stderr)
			switch {
			case tt.wantErr == "" && err != nil:
				t.Errorf("error %v, want none", err)
			case tt.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tt.wantErr)):
				t.Errorf("error %v, want one with %q", err, tt.wantErr)
			}
			for _, want := range tt.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("%q is not shown", want)
				}
			}
			for _, not := range tt.wantNot {
				if strings.Contains(out.String(), not) {
					t.Errorf("%q is shown", not)
				}
			}
			if t.Failed() {
				t.Logf("shown:\n%s%s", &out, &stderr)
			}
		})
	}
}

// What is not the output of go test is an error, not an empty success.
func TestReportGarbage(t *testing.T) {
	if _, err := report(strings.NewReader("go: no such tool\n"), new(bytes.Buffer)); err == nil {
		t.Error("no error")
	}
}
