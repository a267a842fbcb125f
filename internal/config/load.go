package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/knadh/koanf/v2"
	"github.com/spf13/pflag"
)

// ErrHelp says that the user asks for the usage.
var ErrHelp = pflag.ErrHelp

// reserved are variables with our prefix that are not settings: crash points
// of invariants builds, and what the scripts and tests of Pawl are told.
var reserved = regexp.MustCompile(`^PAWL_(CRASH|KAFKA_CACHE|SEEDS?|SOAK|TEST(_.*)?)$`)

// orchestrated are the variables that Kubernetes gives a container for a
// service whose name begins with pawl.
var orchestrated = regexp.MustCompile(`^PAWL_(.*_)?(SERVICE_(HOST|PORT(_.*)?)|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// Load fills the settings from args, a command line without the program's
// name, and env, as os.Environ returns it. An empty variable is one that is
// not set. The error says everything that is wrong, a line each.
func Load(settings []Setting, args, env []string) error {
	l := loader{settings: expand(settings), from: make(map[string]string), k: koanf.New(".")}
	if err := l.load(args, env); err != nil {
		return err
	}
	return errors.Join(l.errs...)
}

// secretFile is the setting of the file that a secret is in.
type secretFile struct {
	value
	of   string
	path *string
}

// expand adds the setting of its file to each secret.
func expand(settings []Setting) []Setting {
	all := make([]Setting, 0, len(settings)+1)
	for _, s := range settings {
		all = append(all, s)
		if s.Secret {
			path := new(string)
			all = append(all, Setting{
				Name:  s.Name + fileSuffix,
				Help:  "file that holds it",
				Value: secretFile{Text(path, "FILE").(value), s.Name, path},
			})
		}
	}
	return all
}

// loader gathers texts first and parses them all then, so that one mistake
// does not hide the next.
type loader struct {
	settings []Setting
	k        *koanf.Koanf      // the text of each setting, by name
	from     map[string]string // the flag or the variable that it was set by
	errs     []error
}

// layer is one source of texts, as koanf wants it.
type layer map[string]any

func (l layer) Read() (map[string]any, error) { return l, nil }

func (l layer) ReadBytes() ([]byte, error) {
	return nil, errors.New("a layer of settings has no bytes")
}

func (l *loader) load(args, env []string) error {
	defaults := make(layer)
	for _, s := range l.settings {
		if s.Default != "" {
			defaults[s.Name] = s.Default
		}
	}
	flags, err := l.flags(args)
	if err != nil {
		return err
	}
	for _, source := range []layer{defaults, l.variables(env), flags} {
		if err := l.k.Load(source, nil); err != nil {
			return fmt.Errorf("merge settings: %w", err)
		}
	}
	for name := range flags {
		l.from[name] = "--" + name
	}
	for _, s := range l.settings {
		l.set(s)
	}
	return nil
}

// set parses the text of one setting.
func (l *loader) set(s Setting) {
	if !l.k.Exists(s.Name) {
		return
	}
	text, from := l.k.String(s.Name), l.from[s.Name]
	if err := s.Value.Set(text); err != nil {
		if from == "" {
			from = "default of " + s.flag()
		}
		if s.Secret {
			l.errs = append(l.errs, fmt.Errorf("%s: %w", from, err))
		} else {
			l.errs = append(l.errs, fmt.Errorf("%s %q: %w", from, text, err))
		}
		return
	}
	if f, ok := s.Value.(secretFile); ok {
		l.readSecret(f, from)
	}
}

// readSecret fills a secret from its file.
func (l *loader) readSecret(f secretFile, from string) {
	if l.k.Exists(f.of) {
		l.errs = append(l.errs, fmt.Errorf("%s and %s are both set: one of them says it", l.from[f.of], from))
		return
	}
	text, err := readSmall(*f.path)
	if err != nil {
		l.errs = append(l.errs, fmt.Errorf("%s: read %s: %w", from, strings.ReplaceAll(f.of, "-", " "), err))
		return
	}
	secret := strings.TrimSuffix(strings.TrimSuffix(string(text), "\n"), "\r")
	i := slices.IndexFunc(l.settings, func(s Setting) bool { return s.Name == f.of })
	if secret == "" {
		err = errors.New("the file is empty")
	} else {
		err = l.settings[i].Value.Set(secret)
	}
	if err != nil {
		l.errs = append(l.errs, fmt.Errorf("%s %q: %w", from, *f.path, err))
	}
}

// secretMax is the size of the longest file that is read as a secret. A
// device file has no end.
const secretMax = 64 << 10

func readSmall(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, secretMax+1))
	if err == nil && len(text) > secretMax {
		err = fmt.Errorf("%s is longer than %d bytes", path, secretMax)
	}
	return text, err
}

// variables returns the texts that the environment holds.
func (l *loader) variables(env []string) layer {
	texts := make(layer)
	for _, entry := range env {
		name, text, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, Prefix) || text == "" || reserved.MatchString(name) {
			continue
		}
		i := slices.IndexFunc(l.settings, func(s Setting) bool { return !s.FlagOnly && s.variable() == name })
		switch {
		case i >= 0:
			texts[l.settings[i].Name] = text
			l.from[l.settings[i].Name] = name
		case orchestrated.MatchString(name):
		default:
			l.errs = append(l.errs, fmt.Errorf("unknown variable %s%s", name, Suggest(name, l.names(func(s Setting) string {
				if s.FlagOnly {
					return ""
				}
				return s.variable()
			}))))
		}
	}
	return texts
}

func (l *loader) names(of func(Setting) string) []string {
	var names []string
	for _, s := range l.settings {
		if n := of(s); n != "" {
			names = append(names, n)
		}
	}
	return names
}

// given is a flag's text as it stands on the command line, not parsed yet.
type given struct {
	texts layer
	s     Setting
}

func (g given) String() string { return "" }
func (g given) Type() string   { return "text" }

func (g given) Set(text string) error {
	if _, ok := g.s.Value.(list); ok {
		if before, ok := g.texts[g.s.Name].(string); ok {
			text = before + "," + text
		}
	}
	g.texts[g.s.Name] = text
	return nil
}

// flags returns the texts that the command line holds. Its error is ErrHelp.
func (l *loader) flags(args []string) (layer, error) {
	args = slices.Clone(args)
	for {
		texts := make(layer)
		set := pflag.NewFlagSet("", pflag.ContinueOnError)
		set.Usage = func() {}
		set.SortFlags = false
		for _, s := range l.settings {
			if s.Secret {
				continue
			}
			f := set.VarPF(given{texts, s}, s.Name, "", s.Help)
			if _, ok := s.Value.(boolean); ok {
				f.NoOptDefVal = "true"
			}
		}
		err := set.Parse(args)
		var unknown *pflag.NotExistError
		switch {
		case errors.Is(err, ErrHelp):
			return nil, ErrHelp
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
			return fmt.Errorf("there is no flag %s, since others could see it: set %s, or name a file with %s%s", near, s.variable(), near, fileSuffix)
		default:
			near += fileSuffix
		}
	}
	return fmt.Errorf("unknown flag %s%s", name, didYouMean(near))
}
