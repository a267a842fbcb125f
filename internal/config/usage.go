package config

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Usage returns the settings as a user wants to read them, two lines each.
func Usage(settings []Setting) string {
	var b strings.Builder
	for _, s := range new(general).whole(settings) {
		left := s.flag()
		if s.short != "" {
			left = "-" + s.short + ", " + left
		}
		if s.Secret {
			left = s.variable()
		}
		if form := s.Value.Form(); form != "" && !s.Secret {
			left += " " + form
		}
		var notes []string
		switch {
		case s.Unset != "":
			notes = append(notes, "default: "+s.Unset)
		case s.Default != "":
			notes = append(notes, "default: "+s.Default)
		}
		right := s.Help
		if len(notes) > 0 {
			right += " (" + strings.Join(notes, ", ") + ")"
		}
		const column = 34
		if utf8.RuneCountInString(left) > column-4 {
			fmt.Fprintf(&b, "  %s\n%*s%s\n", left, column, "", right)
		} else {
			fmt.Fprintf(&b, "  %s%*s%s\n", left, column-2-utf8.RuneCountInString(left), "", right)
		}
	}
	return b.String()
}
