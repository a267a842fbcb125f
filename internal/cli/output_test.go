package cli

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"
)

// anyText draws text of all kinds of characters.
func anyText() *rapid.Generator[string] {
	return rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"", "null", "true", "1", "1e3", "~", "- a", "a: b", "#", "\x00\x1b[31m", "\u202eback", "\U0001F600", "\u2028", "line\nline\r\n", "\t", "'", `"`, `\`, " lead", "trail ", "\u0085", "\ufeff", "=", "0x1f", "2026-11-30"}))
}

// YAML says what JSON says, whatever the text, and neither holds anything that
// would move a terminal's cursor.
func TestFormsAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		thing := map[string]any{
			"text": anyText().Draw(t, "text"),
			"list": []any{anyText().Draw(t, "item"), float64(rapid.Int32().Draw(t, "number")), rapid.Bool().Draw(t, "bool"), nil},
			"none": []any{}, "map": map[string]any{anyText().Draw(t, "name"): map[string]any{}},
		}
		var y bytes.Buffer
		if err := writeYAML(&y, thing); err != nil {
			t.Fatal(err)
		}
		var decoded any
		if err := yaml.Unmarshal(y.Bytes(), &decoded); err != nil {
			t.Fatalf("YAML %q: %v", y.String(), err)
		}
		// Through JSON, in which numbers are of one kind.
		text, err := json.Marshal(decoded)
		if err != nil {
			t.Fatal(err)
		}
		var got map[string]any
		if err := json.Unmarshal(text, &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(thing, got); diff != "" {
			t.Fatalf("YAML %q says something else (-want +got):\n%s", y.String(), diff)
		}
		if i := strings.IndexFunc(y.String(), func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); i >= 0 {
			t.Fatalf("YAML %q holds %q", y.String(), y.String()[i:])
		}
	})
}

func TestTableIsPlain(t *testing.T) {
	var b bytes.Buffer
	tab := newTable(&b)
	tab.row("NAME", "VALUE")
	tab.row("a\tb\x1b[2J", "")
	tab.line("end %s", "\u202e")
	if err := tab.flush(); err != nil {
		t.Fatal(err)
	}
	if got, want := b.String(), "NAME         VALUE\na\\tb\\x1b[2J  -\nend \\u202e\n"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
