package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// DefaultFile is the file of settings that is read where none is named. It
// need not be there.
const DefaultFile = "pawl.yaml"

// readFile returns the texts of the file of settings.
func (l *loader) readFile(in Input, layers []layer) layer {
	texts := newLayer()
	name, named := DefaultFile, ""
	for _, rank := range []int{byVariable, byFlag} {
		if layers[rank].has(fileSetting) {
			name, named = layers[rank].texts[fileSetting], layers[rank].from[fileSetting].named
		}
	}
	text, err := readSmall(name)
	switch {
	case named == "" && errors.Is(err, fs.ErrNotExist):
		return texts
	case named == "" && err != nil:
		l.errs = append(l.errs, fmt.Errorf("read settings: %w", err))
		return texts
	case err != nil:
		l.errs = append(l.errs, fmt.Errorf("%s: %w", named, err))
		return texts
	}
	root, err := parseYAML(text)
	if err != nil {
		l.errs = append(l.errs, fmt.Errorf("%s: %w", name, err))
		return texts
	}
	at := place{name, "", ""}
	for _, e := range l.entries(root, at) {
		i := l.find(func(s Setting) bool { return e.key != "" && s.key() == e.key })
		switch {
		case i >= 0:
			l.take(texts, l.settings[i], e, at)
		case slices.Contains(in.Others, e.key):
		default:
			l.errs = append(l.errs, l.unknownKey(e, at, in.Others))
		}
	}
	return texts
}

// place is where in which file settings stand.
type place struct {
	file   string
	within string // a context's name, or nothing
	source string // what stands before the file's name in a source
}

// at names an entry, as an error does: one that is in no file yet by the flag
// that it comes from.
func (p place) at(e entry) string {
	if e.line == 0 {
		return "--" + e.key
	}
	s := fmt.Sprintf("%s:%d: ", p.file, e.line)
	if p.within != "" {
		s += "context " + p.within + ": "
	}
	return s + e.key
}

// origin is that of an entry's text.
func (p place) origin(e entry) origin {
	return origin{p.at(e), p.source + fmt.Sprintf("%s:%d", p.file, e.line)}
}

// entry is a key with its value.
type entry struct {
	key   string
	line  int
	value *yaml.Node
}

// quoted are pieces of the text in an error of the parser, which may be of a
// secret that does not belong there.
var quoted = regexp.MustCompile(` '[^']*'`)

// parseYAML returns the one document of a text, or nil if there is none.
func parseYAML(text []byte) (*yaml.Node, error) {
	d := yaml.NewDecoder(bytes.NewReader(text))
	var doc, more yaml.Node
	switch err := d.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, nil
	case err != nil:
		return nil, errors.New(quoted.ReplaceAllString(strings.TrimPrefix(err.Error(), "yaml: "), ""))
	}
	if err := d.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, errors.New("want one document, and a second begins")
	}
	return doc.Content[0], nil
}

// entries returns what a mapping holds, each key once.
func (l *loader) entries(n *yaml.Node, at place) []entry {
	found, errs := mapping(n, at)
	l.errs = append(l.errs, errs...)
	return found
}

func mapping(n *yaml.Node, at place) (found []entry, errs []error) {
	switch {
	case n == nil || n.Tag == "!!null":
		return nil, nil
	case n.Kind != yaml.MappingNode:
		where := at.file
		if at.within != "" {
			where = fmt.Sprintf("%s:%d: %s", at.file, n.Line, at.within)
		}
		return nil, []error{fmt.Errorf("%s: want keys with values, such as name: value", where)}
	}
	lines := make(map[string]int)
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		e := entry{k.Value, k.Line, v}
		if k.Kind != yaml.ScalarNode || k.Tag == "!!merge" {
			errs = append(errs, fmt.Errorf("%s:%d: want a plain name as key", at.file, k.Line))
			continue
		}
		if before, ok := lines[e.key]; ok {
			errs = append(errs, fmt.Errorf("%s is set twice, at first in line %d", at.at(e), before))
			continue
		}
		lines[e.key] = e.line
		found = append(found, e)
	}
	return found, errs
}

// take puts an entry's text into a layer.
func (l *loader) take(texts layer, s Setting, e entry, at place) {
	text, err := scalars(e.value, s.Value)
	if err != nil {
		l.errs = append(l.errs, fmt.Errorf("%s: %w", at.at(e), err))
		return
	}
	switch s.Value.(type) {
	case path, secretFile:
		if text != "" && !filepath.IsAbs(text) {
			text = filepath.Join(filepath.Dir(at.file), text)
		}
	}
	texts.set(s.Name, text, at.origin(e))
}

// scalars returns the text of a value.
func scalars(n *yaml.Node, v Value) (string, error) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	switch n.Kind {
	case yaml.ScalarNode:
		if n.Tag == "!!null" {
			return "", errors.New("it has no value: give it one, or leave the key out")
		}
		return n.Value, nil
	case yaml.SequenceNode:
		if _, ok := v.(list); !ok {
			return "", errors.New("want one value, and not a list")
		}
		var items []string
		for _, item := range n.Content {
			if item.Kind != yaml.ScalarNode || item.Tag == "!!null" || strings.Contains(item.Value, ",") {
				return "", fmt.Errorf("item %d of the list: want a value without a comma", len(items)+1)
			}
			items = append(items, item.Value)
		}
		return strings.Join(items, ","), nil
	}
	return "", errors.New("want a value, and not more keys: names are written whole, such as tls-ca")
}

// key is the setting's name in a file, or nothing if it has none there.
func (s Setting) key() string {
	if s.FlagOnly || s.Secret || s.noKey {
		return ""
	}
	return s.Name
}

func (l *loader) unknownKey(e entry, at place, others []string) error {
	if i := l.find(func(s Setting) bool { return s.Secret && s.Name == e.key }); i >= 0 {
		s := l.settings[i]
		return fmt.Errorf("%s: no secret is in this file: set %s, or name a file of its own with %s%s", at.at(e), s.variable(), s.Name, fileSuffix)
	}
	near := nearest(e.key, append(l.names(func(s Setting) string {
		if s.Secret {
			return s.Name
		}
		return s.key()
	}), others...))
	if l.find(func(s Setting) bool { return s.Secret && s.Name == near }) >= 0 {
		near += fileSuffix
	}
	return fmt.Errorf("%s:%d: unknown key %s%s", at.file, e.line, shown(e.key), didYouMean(near))
}

// shown is a key of a file as an error shows it.
func shown(key string) string {
	if regexp.MustCompile(`^[A-Za-z0-9_.-]{1,60}$`).MatchString(key) {
		return key
	}
	return fmt.Sprintf("%.60q", key)
}
