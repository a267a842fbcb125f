package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// given is a flag's text as it stands on the command line, not parsed yet.
type given struct {
	texts layer
	s     Setting
}

func (g given) String() string {
	if text, ok := g.texts.texts[g.s.Name]; ok {
		return text
	}
	return g.s.Default
}

func (g given) Type() string {
	if _, ok := g.s.Value.(boolean); ok {
		return "bool"
	}
	return g.s.Value.Form()
}

func (g given) Set(text string) error {
	if _, ok := g.s.Value.(list); ok && g.texts.has(g.s.Name) {
		text = g.texts.texts[g.s.Name] + "," + text
	}
	g.texts.set(g.s.Name, text, origin{g.s.flag(), g.s.flag()})
	return nil
}

// addTo adds the flags of the settings to a set. What is given on the command
// line is in the layer then.
func (l *loader) addTo(set *pflag.FlagSet) layer {
	texts := newLayer()
	for _, s := range l.settings {
		if s.Secret {
			continue
		}
		f := set.VarPF(given{texts, s}, s.Name, s.short, s.Help)
		if _, ok := s.Value.(boolean); ok {
			f.NoOptDefVal = "true"
		}
	}
	return texts
}

// AddFlags adds the flags of settings to a command's. What it returns loads the
// settings, once the command line is parsed; Input.Args are not looked at.
func AddFlags(set *pflag.FlagSet, settings []Setting) func(Input) (*Loaded, error) {
	l := &loader{}
	l.settings = expand(slices.Concat(settings, l.table(settings)))
	flags := l.addTo(set)
	return func(in Input) (*Loaded, error) {
		fresh := newLoader(settings)
		fresh.settings = expand(slices.Concat(settings, fresh.table(settings)))
		return fresh.load(flags, in)
	}
}

// flags returns the texts that the command line holds. Its error is ErrHelp.
func (l *loader) flags(args []string) (layer, error) {
	args = slices.Clone(args)
	for {
		set := pflag.NewFlagSet("", pflag.ContinueOnError)
		set.Usage = func() {}
		set.SortFlags = false
		texts := l.addTo(set)
		err := set.Parse(args)
		var unknown *pflag.NotExistError
		switch {
		case errors.Is(err, ErrHelp):
			return layer{}, ErrHelp
		case errors.As(err, &unknown):
			// The parser stops at the first: it goes on without it, to find
			// the others.
			i := slices.IndexFunc(args, func(a string) bool { return isFlag(a, unknown) })
			if i < 0 {
				l.errs = append(l.errs, err)
				return texts, nil
			}
			name, _, _ := strings.Cut(args[i], "=")
			l.errs = append(l.errs, l.unknownFlag(name))
			args = slices.Delete(args, i, i+1)
			if i < len(args) && !strings.HasPrefix(args[i], "-") {
				args = slices.Delete(args, i, i+1) // what was to be its value
			}
		case err != nil:
			l.errs = append(l.errs, err)
			return texts, nil
		default:
			for _, a := range set.Args() {
				l.errs = append(l.errs, fmt.Errorf("unexpected argument %q: want only flags", a))
			}
			return texts, nil
		}
	}
}

// isFlag says whether an argument is the flag that the parser does not know.
func isFlag(arg string, unknown *pflag.NotExistError) bool {
	if short := unknown.GetSpecifiedShortnames(); short != "" {
		return strings.HasPrefix(arg, "-") && !strings.HasPrefix(arg, "--") && strings.HasSuffix(arg, short)
	}
	name, _, _ := strings.Cut(arg, "=")
	return name == "--"+unknown.GetSpecifiedName()
}

// unknownFlag says which flag is nearest to one that is not known.
func (l *loader) unknownFlag(name string) error {
	long := "--" + strings.TrimLeft(name, "-")
	near := nearest(long, l.names(Setting.flag))
	for _, s := range l.settings {
		switch {
		case !s.Secret || near != s.flag():
		case long == near:
			return noSecretFlag(s)
		default:
			near += fileSuffix
		}
	}
	return fmt.Errorf("unknown flag %s%s", name, didYouMean(near))
}

func noSecretFlag(s Setting) error {
	return fmt.Errorf("there is no flag %s, since others could see it: set %s, or name a file with %s%s", s.flag(), s.variable(), s.flag(), fileSuffix)
}
