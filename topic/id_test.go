package topic

import (
	"encoding/json"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestIDText(t *testing.T) {
	id := ID{0: 0xfb, 1: 0xff, 15: 1} // gives both characters that differ between the base64 alphabets
	if got, want := id.String(), "-_8AAAAAAAAAAAAAAAAAAQ"; got != want {
		t.Errorf("String() = %q, want %q", got, want)
	}
	rapid.Check(t, func(t *rapid.T) {
		var id, got ID
		copy(id[:], rapid.SliceOfN(rapid.Byte(), len(id), len(id)).Draw(t, "id"))
		text, err := json.Marshal(id)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, &got); err != nil || got != id {
			t.Errorf("%s came back as %x (%v), want %x", text, got, err, id)
		}
	})
}

func TestIDUnmarshalTextErrors(t *testing.T) {
	for _, tt := range []struct{ name, text string }{
		{"empty", ""},
		{"short", "-_8AAAAAAAAAAAAAAAAAA"},
		{"long", "-_8AAAAAAAAAAAAAAAAAAQA"},
		{"padded", "-_8AAAAAAAAAAAAAAAAAAQ=="},
		{"very long", strings.Repeat("A", 1<<16)},
		{"the other alphabet", "+/8AAAAAAAAAAAAAAAAAAQ"},
		{"bits beyond the last byte", "-_8AAAAAAAAAAAAAAAAAAR"},
		{"a line break", "-_8AAAAAAAAAAAAAAAAA\nQ"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			id := ID{7: 7}
			if err := id.UnmarshalText([]byte(tt.text)); err == nil {
				t.Errorf("%.40q gives %x, want an error", tt.text, id)
			}
			if want := (ID{7: 7}); id != want {
				t.Errorf("the error left %x, want %x", id, want)
			}
		})
	}
}

// One ID has one text: whatever is accepted comes out again as it went in.
func FuzzIDUnmarshalText(f *testing.F) {
	for _, s := range []string{"", "AAAAAAAAAAAAAAAAAAAAAA", "-_8AAAAAAAAAAAAAAAAAAQ", "-_8AAAAAAAAAAAAAAAAAA\n", "\r\n\r\nAAAAAAAAAAAAAAAAAAAA"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var id ID
		if err := id.UnmarshalText(text); err != nil {
			return
		}
		if got := id.String(); got != string(text) {
			t.Errorf("%q was accepted and is %q", text, got)
		}
	})
}
