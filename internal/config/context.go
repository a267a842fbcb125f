package config

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// envSuffix ends the key that names, in a context, the variable that holds a
// secret: one context's password is not another's.
const envSuffix = "-env"

// useContext puts the settings of a context into their layer, if one is named
// by something that ranks above what names brokers.
//
// A context is a cluster as a whole, and only flags change what it says. What
// files and variables say of a cluster is dropped, so that no password goes
// where it does not belong; but a secret that the context does not name may
// come from a variable.
func (l *loader) useContext(in Input, layers []layer) {
	if l.find(func(s Setting) bool { return s.Name == contextSetting }) < 0 {
		return
	}
	rank, brokers := -1, -1
	for i, at := range layers {
		if at.has(contextSetting) {
			rank = i
		}
		if at.has(brokersSetting) {
			brokers = i
		}
	}
	switch {
	case rank >= 0 && rank == brokers:
		l.errs = append(l.errs, fmt.Errorf("%s and %s both name a cluster: set one of them", layers[rank].from[contextSetting].named, layers[rank].from[brokersSetting].named))
		return
	case rank < brokers, rank < 0 && !in.Current:
		for _, at := range layers {
			at.remove(contextSetting) // it is not in use
		}
		return
	}
	contexts, err := ReadContexts(ContextsFile(in.Env))
	if err != nil {
		l.errs = append(l.errs, err)
		return
	}
	name, named := contexts.Current, ""
	if rank >= 0 {
		name, named = layers[rank].texts[contextSetting], layers[rank].from[contextSetting].named
	}
	if name == "" {
		if rank >= 0 {
			l.errs = append(l.errs, fmt.Errorf("%s %q: want the name of a context", named, name))
		}
		return
	}
	settings, ok := contexts.find(name)
	if !ok {
		if rank < 0 {
			named = contexts.file + ": " + currentKey
		}
		l.errs = append(l.errs, fmt.Errorf("%s %q: %s has no such context%s", named, name, contexts.file, Suggest(name, contexts.Names())))
		return
	}
	if rank < 0 {
		layers[byCurrent].set(contextSetting, name, origin{contexts.file + ": " + currentKey, contexts.file})
	}
	texts := newLayer()
	at := place{contexts.file, name, "context " + name + ", "}
	for _, e := range l.entries(settings, at) {
		l.takeOfContext(texts, e, at, in)
	}
	for _, s := range l.settings {
		if !s.Cluster {
			continue
		}
		for i, other := range layers {
			own := (s.Secret || isSecretFile(s)) && i == byVariable && !l.hasSecret(texts, s)
			if i != byFlag && i != byDefault && !own {
				other.remove(s.Name)
			}
		}
		if texts.has(s.Name) && !l.hasSecret(layers[byFlag], s) {
			layers[byCurrent].set(s.Name, texts.texts[s.Name], texts.from[s.Name])
		}
	}
	l.oneSecret(layers)
}

func isSecretFile(s Setting) bool {
	_, ok := s.Value.(secretFile)
	return ok
}

// hasSecret says whether a layer has the secret that s is, or is the file of.
func (l *loader) hasSecret(at layer, s Setting) bool {
	name := s.Name
	if f, ok := s.Value.(secretFile); ok {
		name = f.of
	} else if !s.Secret {
		return false
	}
	return at.has(name) || at.has(name+fileSuffix)
}

// brokersSetting names the setting by which a program is told of a cluster.
const brokersSetting = "brokers"

// takeOfContext puts one entry of a context into a layer.
func (l *loader) takeOfContext(texts layer, e entry, at place, in Input) {
	if i := l.find(func(s Setting) bool { return s.Cluster && e.key != "" && s.key() == e.key }); i >= 0 {
		l.take(texts, l.settings[i], e, at)
		return
	}
	if i := l.find(func(s Setting) bool { return s.Cluster && s.Secret && s.Name+envSuffix == e.key }); i >= 0 {
		name, err := scalars(e.value, l.settings[i].Value)
		if text := in.env(name); err == nil && text != "" {
			texts.set(l.settings[i].Name, text, origin{at.at(e) + " " + name, at.source + name})
			return
		}
		if err == nil {
			err = fmt.Errorf("the variable %s is not set", shown(name))
		}
		l.errs = append(l.errs, fmt.Errorf("%s: %w", at.at(e), err))
		return
	}
	l.errs = append(l.errs, l.unknownInContext(e, at))
}

func (l *loader) unknownInContext(e entry, at place) error {
	for _, s := range l.settings {
		if s.Cluster && s.Secret && s.Name == e.key {
			return fmt.Errorf("%s: no secret is in this file: name a variable that holds it with %s%s, or a file of its own with %s%s", at.at(e), s.Name, envSuffix, s.Name, fileSuffix)
		}
	}
	known := l.names(func(s Setting) string {
		switch {
		case !s.Cluster:
			return ""
		case s.Secret:
			return s.Name + envSuffix
		}
		return s.key()
	})
	if slices.Contains(l.names(Setting.key), e.key) {
		return fmt.Errorf("%s: a context says how brokers are reached, and nothing else", at.at(e))
	}
	return fmt.Errorf("%s:%d: context %s: unknown key %s%s", at.file, e.line, at.within, shown(e.key), Suggest(e.key, known))
}

// CheckContext reports what is wrong with the settings of a context, as far as
// that can be told without using it.
func (c *Contexts) CheckContext(name string, settings []Setting) error {
	l := newLoader(settings)
	n, ok := c.find(name)
	if !ok {
		return fmt.Errorf("%s has no context %q%s", c.file, name, Suggest(name, c.Names()))
	}
	at, texts := place{c.file, name, ""}, newLayer()
	entries := l.entries(n, at)
	for _, e := range entries {
		if e.value.Kind == yaml.ScalarNode && strings.HasSuffix(e.key, envSuffix) {
			file := strings.TrimSuffix(e.key, envSuffix) + fileSuffix
			if slices.ContainsFunc(entries, func(e entry) bool { return e.key == file }) {
				l.errs = append(l.errs, fmt.Errorf("context %s: %s and %s are both set: one of them says it", name, e.key, file))
			}
			continue
		}
		l.takeOfContext(texts, e, at, Input{})
	}
	for name, text := range texts.texts {
		s := l.settings[l.find(func(s Setting) bool { return s.Name == name })]
		if err := s.Value.Set(text); err != nil {
			l.errs = append(l.errs, fmt.Errorf("%s %q: %w", texts.from[name].named, redacted(text), err))
		}
	}
	return joined(l.errs)
}
