package config

import "strings"

// Prefix begins the name of every variable.
const Prefix = "PAWL_"

// Setting is one line of a program's table of settings.
type Setting struct {
	// Name is the flag without its hyphens: commit-interval is set by the flag
	// --commit-interval and the variable PAWL_COMMIT_INTERVAL.
	Name string

	// Value is where the setting goes, and what may be written there.
	Value Value

	// Default is used when neither flag nor variable is set. Empty leaves the
	// value as it is.
	Default string

	// Unset says in the usage what holds when nothing is set, where that is
	// not the text of Default.
	Unset string

	// Help is one sentence for the usage, without its full stop.
	Help string

	// Secret settings have no flag of their own, since every user of a machine
	// sees the flags of its programs. Their value comes from the variable, or
	// from the file that the flag --NAME-file or the variable PAWL_NAME_FILE
	// names; a line break at its end is dropped. No error shows it.
	Secret bool

	// FlagOnly settings have no variable: they ask for something once.
	FlagOnly bool
}

func (s Setting) flag() string { return "--" + s.Name }

func (s Setting) variable() string { return variable(s.Name) }

func variable(name string) string {
	return Prefix + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

const fileSuffix = "-file"
