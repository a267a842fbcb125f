package config

import "strings"

// Prefix begins the name of every variable.
const Prefix = "PAWL_"

// AdminToken names the setting that programs and who asks them have in common.
const AdminToken = "admin-token"

// Setting is one line of a program's table of settings.
type Setting struct {
	// Name is the key in a file, and the flag without its hyphens:
	// commit-interval is set by the flag --commit-interval, the variable
	// PAWL_COMMIT_INTERVAL and the key commit-interval.
	Name string

	// Value is where the setting goes, and what may be written there.
	Value Value

	// Default is used when nothing else is set. Empty leaves the value as it
	// is.
	Default string

	// Unset says in the usage what holds when nothing is set, where that is
	// not the text of Default.
	Unset string

	// Help is one sentence for the usage, without its full stop.
	Help string

	// Secret settings have no flag of their own, since every user of a machine
	// sees the flags of its programs, and no key, since files of settings are
	// shared. Their value comes from the variable, or from the file that
	// --NAME-file, PAWL_NAME_FILE or the key NAME-file names; a line break at
	// its end is dropped. Nothing shows it.
	Secret bool

	// File, where it is set for a secret, takes the path of the file instead of
	// what the file holds, for a secret that changes while the program runs.
	File *string

	// FlagOnly settings have neither variable nor key: they ask for something
	// once.
	FlagOnly bool

	// Cluster settings say how brokers are reached. A context sets them.
	Cluster bool

	noKey bool   // it has a flag and a variable, and no key in a file
	short string // the flag's letter
}

func (s Setting) flag() string { return "--" + s.Name }

func (s Setting) variable() string { return variable(s.Name) }

func variable(name string) string {
	return Prefix + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}
