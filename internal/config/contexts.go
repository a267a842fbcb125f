package config

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Contexts are the named ways to reach clusters that a file holds:
//
//	current: prod
//	contexts:
//	  prod:
//	    brokers: [kafka-1:9093, kafka-2:9093]
//	    tls-ca: prod-ca.pem
//	    sasl-mechanism: SCRAM-SHA-512
//	    sasl-username: ann
//	    sasl-password-env: PROD_PASSWORD
//
// Its methods change what is in memory, and Write the file. Comments stay.
type Contexts struct {
	Current string // the one that commands use if none is named; may be empty

	file string
	root *yaml.Node // the mapping
	all  *yaml.Node // its contexts, or nil
}

const (
	currentKey  = "current"
	contextsKey = "contexts"
)

// ContextsFile returns where a user's contexts are, or nothing if the user has
// no home.
func ContextsFile(env []string) string {
	in := Input{Env: env}
	// A relative one is invalid, says the standard that they come from.
	if dir := in.env("XDG_CONFIG_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "pawl", "config.yaml")
	}
	if home := in.env("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, ".config", "pawl", "config.yaml")
	}
	return ""
}

// ReadContexts reads a file of contexts. One that is not there has none.
func ReadContexts(file string) (*Contexts, error) {
	c := &Contexts{file: file, root: &yaml.Node{Kind: yaml.MappingNode}}
	if file == "" {
		return c, nil
	}
	text, err := readSmall(file)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read contexts: %w", err)
	}
	root, err := parseYAML(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if root != nil && root.Tag != "!!null" {
		c.root = root
	}
	at := place{file: file}
	entries, errs := mapping(c.root, at)
	for _, e := range entries {
		switch e.key {
		case currentKey:
			if c.Current, err = scalars(e.value, Text(nil, "")); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", at.at(e), err))
			}
		case contextsKey:
			c.all = e.value
			_, more := mapping(e.value, place{file, contextsKey, ""})
			errs = append(errs, more...)
		default:
			errs = append(errs, fmt.Errorf("%s:%d: unknown key %s%s", file, e.line, shown(e.key), Suggest(e.key, []string{currentKey, contextsKey})))
		}
	}
	return c, joined(errs)
}

// joined is errors.Join of a slice.
func joined(errs []error) error { return errors.Join(errs...) }

// File is where the contexts are.
func (c *Contexts) File() string { return c.file }

// Names returns the names of all contexts, in the order of the file.
func (c *Contexts) Names() []string {
	var names []string
	if c.all != nil && c.all.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(c.all.Content); i += 2 {
			names = append(names, c.all.Content[i].Value)
		}
	}
	return names
}

// find returns the mapping of a context.
func (c *Contexts) find(name string) (*yaml.Node, bool) {
	if i := slices.Index(c.Names(), name); i >= 0 {
		return c.all.Content[2*i+1], true
	}
	return nil, false
}

// Field is one line of a context.
type Field struct{ Key, Value string }

// Fields returns what a context says, to be shown. A secret that does not
// belong there is hidden.
func (c *Contexts) Fields(name string, settings []Setting) []Field {
	n, _ := c.find(name)
	entries, _ := mapping(n, place{file: c.file})
	var fields []Field
	for _, e := range entries {
		text, err := scalars(e.value, List(new([]string), ""))
		if err != nil || slices.ContainsFunc(settings, func(s Setting) bool { return s.Secret && s.Name == e.key }) {
			text = hidden
		}
		if i := slices.IndexFunc(settings, func(s Setting) bool { return s.Name == e.key }); i >= 0 {
			text = canonical(settings[i].Value, text)
		}
		fields = append(fields, Field{e.key, redacted(text)})
	}
	return fields
}

var contextName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$`)

// Use makes a context the current one; none with an empty name.
func (c *Contexts) Use(name string) error {
	if _, ok := c.find(name); !ok && name != "" {
		return fmt.Errorf("%s has no context %q%s", c.file, name, Suggest(name, c.Names()))
	}
	c.Current = name
	if name == "" {
		removeKey(c.root, currentKey)
	} else {
		setKey(c.root, currentKey, text(name))
	}
	return nil
}

// Add adds a context, or replaces what one says.
func (c *Contexts) Add(name string, fields []Field, replace bool) error {
	if !contextName.MatchString(name) {
		return fmt.Errorf("context %.60q: want letters, digits, hyphens, dots and underscores", name)
	}
	if _, ok := c.find(name); ok && !replace {
		return fmt.Errorf("%s has a context %s already", c.file, name)
	}
	if c.all == nil || c.all.Kind != yaml.MappingNode {
		c.all = &yaml.Node{Kind: yaml.MappingNode}
		setKey(c.root, contextsKey, c.all)
	}
	n := &yaml.Node{Kind: yaml.MappingNode}
	for _, f := range fields {
		setKey(n, f.Key, text(f.Value))
	}
	c.all.Style = 0
	setKey(c.all, name, n)
	return nil
}

// Delete deletes a context.
func (c *Contexts) Delete(name string) error {
	if _, ok := c.find(name); !ok {
		return fmt.Errorf("%s has no context %q%s", c.file, name, Suggest(name, c.Names()))
	}
	removeKey(c.all, name)
	if c.Current == name {
		return c.Use("")
	}
	return nil
}

// Write replaces the file, as a whole or not at all. Only its owner may read
// it: it says where secrets are.
func (c *Contexts) Write() error {
	if c.file == "" {
		return errors.New("write contexts: there is no directory to have them in: set HOME or XDG_CONFIG_HOME")
	}
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	err := errors.Join(e.Encode(c.root), e.Close())
	if err == nil {
		err = os.MkdirAll(filepath.Dir(c.file), 0o700)
	}
	if err == nil {
		err = replaceFile(c.file, b.Bytes())
	}
	if err != nil {
		return fmt.Errorf("write contexts: %w", err)
	}
	return nil
}

// replaceFile writes a file that others see whole, before or after. A link
// stays one.
func replaceFile(name string, data []byte) error {
	if target, err := filepath.EvalSymlinks(name); err == nil {
		name = target
	}
	f, err := os.CreateTemp(filepath.Dir(name), ".config-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// text is a scalar that is read back as the text, whatever it looks like.
func text(s string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: s}
	if strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		n.Style = yaml.DoubleQuotedStyle
	}
	return n
}

// setKey sets a key of a mapping, at its end if it is new.
func setKey(n *yaml.Node, key string, value *yaml.Node) {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			n.Content[i+1] = value
			return
		}
	}
	n.Content = append(n.Content, text(key), value)
}

func removeKey(n *yaml.Node, key string) {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			n.Content = slices.Delete(n.Content, i, i+2)
			return
		}
	}
}
