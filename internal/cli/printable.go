package cli

import (
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// What others have written into keys, values, headers and errors must not
// reach a terminal as it is: a control character could move the cursor, change
// what stands there, or hide what follows.

// printable returns text in one line, with everything that is not a visible
// character written as an escape of Go's, such as \n, \x1b or \u202e. A
// backslash is doubled, so that the text can be told from an escape.
func printable(s string) string {
	q := strconv.Quote(s)
	return strings.ReplaceAll(q[1:len(q)-1], `\"`, `"`)
}

// visible is printable for text that quotes what others have written where it
// can, such as an error's: a backslash stays one, and a tab is spaces.
func visible(s string) string {
	s = strings.ReplaceAll(s, "\t", "    ")
	if utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return s
	}
	return strings.ReplaceAll(printable(s), `\\`, `\`)
}

// cut shortens text to a width, in characters.
func cut(s string, width int) string {
	if utf8.RuneCountInString(s) <= width {
		return s
	}
	n := 0
	for i := range s {
		if n == width-1 {
			return s[:i] + "…"
		}
		n++
	}
	return s
}

// jsonWriter writes JSON on. What in it is not visible, and JSON lets pass as
// it is, becomes an escape of JSON's: the meaning stays the same. Each Write
// must be whole characters, as those of an encoder are.
type jsonWriter struct{ to io.Writer }

func (w jsonWriter) Write(p []byte) (int, error) {
	var b []byte // p as it is to be written; nil while it is the same
	for i := 0; i < len(p); {
		r, size := utf8.DecodeRune(p[i:])
		seen := r == '\n' || r >= ' ' && r < 0x7f || r > 0x7f && unicode.IsPrint(r)
		if !seen && b == nil {
			b = append(make([]byte, 0, len(p)+16), p[:i]...)
		}
		switch {
		case seen && b != nil:
			b = append(b, p[i:i+size]...)
		case !seen && r > 0xffff:
			high, low := utf16.EncodeRune(r)
			b = appendEscape(appendEscape(b, high), low)
		case !seen:
			b = appendEscape(b, r)
		}
		i += size
	}
	if b == nil {
		return w.to.Write(p)
	}
	if _, err := w.to.Write(b); err != nil {
		return 0, err
	}
	return len(p), nil
}

func appendEscape(b []byte, r rune) []byte {
	const digits = "0123456789abcdef"
	return append(b, '\\', 'u', digits[r>>12&15], digits[r>>8&15], digits[r>>4&15], digits[r&15])
}
