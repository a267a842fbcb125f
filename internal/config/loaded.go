package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Loaded is what Read has found: which text each setting has, and from where.
type Loaded struct {
	settings []Setting
	text     map[string]string
	from     map[string]origin
	general
}

func (l *loader) loaded() *Loaded {
	all := &Loaded{text: make(map[string]string), from: l.from, general: l.general}
	for _, s := range l.settings {
		if s.FlagOnly {
			continue
		}
		all.settings = append(all.settings, s)
		if l.k.Exists(s.Name) {
			all.text[s.Name] = canonical(s.Value, l.k.String(s.Name))
		}
	}
	return all
}

// PrintWanted says whether the user asks for the settings rather than for what
// the program does, and in which format: yaml or json.
func (l *Loaded) PrintWanted() (format string, wanted bool) { return l.format, l.print }

// IsSet says whether anything but a default sets the setting.
func (l *Loaded) IsSet(name string) bool {
	_, ok := l.text[name]
	return ok && l.from[name].source != "default"
}

// Named returns what set the setting, as an error names it.
func (l *Loaded) Named(name string) string {
	if from, ok := l.from[name]; ok {
		return from.named
	}
	return "--" + name
}

// Derive says which text a setting has that nothing has set, and why.
func (l *Loaded) Derive(name, text, why string) {
	l.text[name], l.from[name] = text, origin{"default of --" + name, "default: " + why}
}

// Explain names what has set a field of a Config in front of what is wrong with
// it. Such an error says the field's name as Go has it by a method Field.
// settings has the name of the setting by the name of the field, in addition to
// those of a cluster.
func (l *Loaded) Explain(err error, settings map[string]string) error {
	if err == nil {
		return nil
	}
	var all []error
	explained := false
	for _, e := range leaves(err) {
		var field interface {
			error
			Field() string
		}
		if errors.As(e, &field) {
			setting := settings[field.Field()]
			if setting == "" {
				setting = clusterFields[field.Field()]
			}
			if setting != "" {
				e, explained = l.explainField(setting, field), true
			}
		}
		all = append(all, e)
	}
	if !explained {
		return err
	}
	return errors.Join(all...)
}

// leaves returns the errors that were joined to one.
func leaves(err error) []error {
	switch e := err.(type) {
	case interface{ Unwrap() []error }:
		var all []error
		for _, one := range e.Unwrap() {
			all = append(all, leaves(one)...)
		}
		return all
	case interface{ Unwrap() error }:
		if more := leaves(e.Unwrap()); len(more) > 1 {
			return more
		}
	}
	return []error{err}
}

// hidden stands for a secret.
const hidden = "(hidden)"

// Print prints every setting with where it comes from, as YAML that is a file
// of settings again, or as JSON.
func (l *Loaded) Print(w io.Writer, format string) error {
	var err error
	if format == "json" {
		err = l.printJSON(w)
	} else {
		_, err = io.WriteString(w, l.yaml())
	}
	if err != nil {
		return fmt.Errorf("print the settings: %w", err)
	}
	return nil
}

func (l *Loaded) yaml() string {
	var b strings.Builder
	for _, s := range l.settings {
		text, ok := l.text[s.Name]
		source := l.from[s.Name].source
		switch {
		case !ok && isSecretFile(s):
		case !ok && s.Unset != "":
			fmt.Fprintf(&b, "# %s: not set (default: %s)\n", s.Name, s.Unset)
		case !ok:
			fmt.Fprintf(&b, "# %s: not set\n", s.Name)
		case s.Secret, s.noKey:
			if s.Secret {
				text = hidden
			}
			fmt.Fprintf(&b, "# %-40s # %s\n", s.Name+": "+scalar(text, s.Value), printed(source))
		case s.Name == contextSetting:
			// What it says is below, each with its source: both name a cluster.
			fmt.Fprintf(&b, "# %-40s # %s\n", s.Name+": "+scalar(text, s.Value), printed(source))
		default:
			fmt.Fprintf(&b, "%-42s # %s\n", s.Name+": "+scalar(text, s.Value), printed(source))
		}
	}
	return b.String()
}

// printed makes a source fit for one line: a file's name may hold anything.
func printed(source string) string {
	if q := strconv.Quote(source); q[1:len(q)-1] != source {
		return q
	}
	return source
}

// scalar is a value as YAML, in one line.
func scalar(s string, v Value) string {
	n := text(s)
	switch v.(type) {
	case number, boolean:
		n.Tag = "" // as it stands
	}
	if _, ok := v.(list); ok && strings.Contains(s, ",") {
		n = &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
		for item := range strings.SplitSeq(s, ",") {
			n.Content = append(n.Content, text(strings.TrimSpace(item)))
		}
	}
	out, err := yaml.Marshal(n)
	if one := strings.TrimSuffix(string(out), "\n"); err == nil && !strings.Contains(one, "\n") {
		return one
	}
	return strconv.Quote(s)
}

// shownSetting is a setting in JSON.
type shownSetting struct {
	Name   string `json:"name"`
	Value  any    `json:"value"` // null: not set
	Source string `json:"source,omitempty"`
	Unset  string `json:"default,omitempty"` // in words, where it is not set
}

func (l *Loaded) printJSON(w io.Writer) error {
	var all []shownSetting
	for _, s := range l.settings {
		text, ok := l.text[s.Name]
		shown := shownSetting{Name: s.Name, Source: l.from[s.Name].source}
		switch {
		case !ok && isSecretFile(s):
			continue
		case !ok:
			shown.Unset = s.Unset
		case s.Secret:
			shown.Value = hidden
		default:
			shown.Value = typed(text, s.Value)
		}
		all = append(all, shown)
	}
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(all)
}

func typed(text string, v Value) any {
	switch v.(type) {
	case number:
		return json.Number(text)
	case boolean:
		return text == "true"
	case list:
		var items []string
		for item := range strings.SplitSeq(text, ",") {
			items = append(items, strings.TrimSpace(item))
		}
		return items
	}
	return text
}
