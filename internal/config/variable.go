package config

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// reserved are variables with our prefix that are not settings: crash points
// of invariants builds, and what the scripts and tests of Pawl are told.
var reserved = regexp.MustCompile(`^PAWL_(CRASH|KAFKA_CACHE|SEEDS?|SOAK|TEST(_.*)?)$`)

// orchestrated are the variables that Kubernetes gives a container for a
// service whose name begins with pawl.
var orchestrated = regexp.MustCompile(`^PAWL_(.*_)?(SERVICE_(HOST|PORT(_.*)?)|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// variables returns the texts that the environment holds.
func (l *loader) variables(in Input) layer {
	texts := newLayer()
	for _, entry := range in.Env {
		name, text, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, Prefix) || text == "" || reserved.MatchString(name) {
			continue
		}
		i := l.find(func(s Setting) bool { return !s.FlagOnly && s.variable() == name })
		switch {
		case i >= 0:
			texts.set(l.settings[i].Name, text, origin{name, name})
		case orchestrated.MatchString(name), slices.ContainsFunc(in.Others, func(n string) bool { return variable(n) == name }):
		default:
			known := l.names(func(s Setting) string {
				if s.FlagOnly {
					return ""
				}
				return s.variable()
			})
			for _, n := range in.Others {
				known = append(known, variable(n))
			}
			l.errs = append(l.errs, fmt.Errorf("unknown variable %s%s", name, Suggest(name, known)))
		}
	}
	return texts
}
