package cli

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode"

	"pgregory.net/rapid"
)

func TestPrintable(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"plain", "plain"},
		{`say "hi"`, `say "hi"`},
		{"Zürich 東京", "Zürich 東京"},
		{"\x1b[2J\x1b]0;title\a", `\x1b[2J\x1b]0;title\a`},
		{"two\nlines\r", `two\nlines\r`},
		{`C:\n`, `C:\\n`},
		{"\u009b31m", `\u009b31m`},
		{"abc\u202etxt", `abc\u202etxt`},
		{"\xff\xfe", `\xff\xfe`},
		{"\x7f", `\x7f`},
	} {
		if got := printable(tt.text); got != tt.want {
			t.Errorf("printable(%q) = %s, want %s", tt.text, got, tt.want)
		}
	}
}

// Whatever the text, what is printed is visible, and JSON keeps its meaning.
func TestNothingRaw(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.String(), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) })).Draw(t, "text")
		if got := printable(text); strings.ContainsFunc(got, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Fatalf("printable(%q) = %q, which is not all visible", text, got)
		}
		text = strings.ToValidUTF8(text, "?")
		var out bytes.Buffer
		enc := json.NewEncoder(jsonWriter{&out})
		if err := enc.Encode(text); err != nil {
			t.Fatal(err)
		}
		line := strings.TrimSuffix(out.String(), "\n")
		if strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Fatalf("JSON of %q is %q, which is not all visible", text, line)
		}
		var back string
		if err := json.Unmarshal(out.Bytes(), &back); err != nil || back != text {
			t.Fatalf("JSON of %q is %s, which is %q (error %v)", text, line, back, err)
		}
	})
}

func TestCut(t *testing.T) {
	for _, tt := range []struct {
		text  string
		width int
		want  string
	}{{"abc", 3, "abc"}, {"abcd", 3, "ab…"}, {"äöüß", 3, "äö…"}, {"", 3, ""}} {
		if got := cut(tt.text, tt.width); got != tt.want {
			t.Errorf("cut(%q, %d) = %q, want %q", tt.text, tt.width, got, tt.want)
		}
	}
}
