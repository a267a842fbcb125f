package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/knadh/koanf/v2"
	"github.com/spf13/pflag"
)

// ErrHelp says that the user asks for the usage.
var ErrHelp = pflag.ErrHelp

// Input is what a program is given from outside.
type Input struct {
	Args []string // the command line, without the program's name
	Env  []string // the environment, as os.Environ returns it

	// Others are names of settings that other programs have. A file or an
	// environment may hold them, where it is shared: they are passed over. A
	// name that is in neither table is refused.
	Others []string

	// Current uses the current context where nothing names brokers.
	Current bool
}

// env returns a variable's text, or nothing.
func (in Input) env(name string) (text string) {
	for _, v := range in.Env {
		if t, ok := strings.CutPrefix(v, name+"="); ok {
			text = t // the last one holds
		}
	}
	return text
}

// Read fills the settings in. An empty variable is one that is not set. The
// error says everything that is wrong, a line each; it is ErrHelp alone if the
// user asks for that.
func Read(settings []Setting, in Input) (*Loaded, error) {
	l := newLoader(settings)
	flags, err := l.flags(in.Args)
	if err != nil {
		return nil, err
	}
	return l.load(flags, in)
}

// The settings that every program has without saying so.
const (
	fileSetting    = "config"
	contextSetting = "context"
	outputSetting  = "output"
)

// PrintSetting is the flag by which a user asks for the settings themselves.
const PrintSetting = "print-config"

// general are the settings of the settings themselves.
type general struct {
	file, context string
	print         bool
	format        string
}

func (g *general) table(settings []Setting) []Setting {
	all := []Setting{{Name: fileSetting, Value: Text(&g.file, "FILE"), Unset: DefaultFile + ", if there is one", Help: "file of settings", noKey: true}}
	if slices.ContainsFunc(settings, func(s Setting) bool { return s.Cluster }) {
		all = append(all, Setting{Name: contextSetting, Value: Text(&g.context, "NAME"), Help: "named way to reach brokers, of those that pawl context lists"})
	}
	return append(all, Setting{Name: PrintSetting, Value: Bool(&g.print), FlagOnly: true, Help: "print every setting and where it comes from, and exit"})
}

// output is for programs: commands have a flag of that name for all they print.
func (g *general) output() Setting {
	return Setting{Name: outputSetting, Value: Choice(&g.format, "yaml", "json"), Default: "yaml", FlagOnly: true, short: "o", Help: "how --print-config prints"}
}

// whole returns a program's settings with those that it does not list itself.
func (g *general) whole(settings []Setting) []Setting {
	return expand(slices.Concat(settings, g.table(settings), []Setting{g.output()}))
}

// loader gathers texts first and parses them all then, so that one mistake
// does not hide the next.
type loader struct {
	general
	settings []Setting
	k        *koanf.Koanf      // the text of each setting, by name
	from     map[string]origin // and where it comes from
	errs     []error
}

func newLoader(settings []Setting) *loader {
	l := &loader{from: make(map[string]origin), k: koanf.New(".")}
	l.settings = l.whole(settings)
	return l
}

// origin is where a text stands.
type origin struct {
	named  string // as an error names it: --drain, or pawl.yaml:3: drain
	source string // as one who knows the setting names it: --drain, or pawl.yaml:3
}

// layer is one source of texts.
type layer struct {
	texts map[string]string
	from  map[string]origin
}

func newLayer() layer { return layer{make(map[string]string), make(map[string]origin)} }

func (l layer) set(name, text string, from origin) { l.texts[name], l.from[name] = text, from }

func (l layer) remove(name string) {
	delete(l.texts, name)
	delete(l.from, name)
}

func (l layer) has(name string) bool {
	_, ok := l.texts[name]
	return ok
}

// Read returns the texts as koanf wants them.
func (l layer) Read() (map[string]any, error) {
	all := make(map[string]any, len(l.texts))
	for name, text := range l.texts {
		all[name] = text
	}
	return all, nil
}

func (l layer) ReadBytes() ([]byte, error) {
	return nil, errors.New("a layer of settings has no bytes")
}

// The layers, from the one that all others win over.
const (
	byDefault = iota
	byCurrent // the current context
	byFile
	byVariable
	byFlag
	numLayers
)

// load merges the flags with all other sources, and fills the settings in.
func (l *loader) load(flags layer, in Input) (*Loaded, error) {
	var layers [numLayers]layer
	layers[byDefault], layers[byCurrent] = l.defaults(), newLayer()
	layers[byFlag] = flags
	layers[byVariable] = l.variables(in)
	layers[byFile] = l.readFile(in, layers[:])
	l.oneSecret(layers[:])
	l.useContext(in, layers[:])
	for _, source := range layers {
		if err := l.k.Load(source, nil); err != nil {
			return nil, fmt.Errorf("merge settings: %w", err)
		}
		for name, from := range source.from {
			l.from[name] = from
		}
	}
	for _, s := range l.settings {
		l.set(s)
	}
	if flags.has(outputSetting) && !l.print {
		l.errs = append(l.errs, fmt.Errorf("--%s is for --%s, which is not set", outputSetting, PrintSetting))
	}
	return l.loaded(), errors.Join(l.errs...)
}

func (l *loader) defaults() layer {
	texts := newLayer()
	for _, s := range l.settings {
		if s.Default != "" {
			texts.set(s.Name, s.Default, origin{"default of " + s.flag(), "default"})
		}
	}
	return texts
}

// set parses the text of one setting.
func (l *loader) set(s Setting) {
	if !l.k.Exists(s.Name) {
		return
	}
	text, from := l.k.String(s.Name), l.from[s.Name].named
	if err := s.Value.Set(text); err != nil {
		if s.Secret {
			l.errs = append(l.errs, fmt.Errorf("%s: %w", from, err))
		} else {
			l.errs = append(l.errs, fmt.Errorf("%s %q: %w", from, redacted(text), err))
		}
		return
	}
	if f, ok := s.Value.(secretFile); ok {
		l.readSecret(f, from)
	}
}

// find returns the index of a setting, or -1.
func (l *loader) find(is func(Setting) bool) int { return slices.IndexFunc(l.settings, is) }

// names returns what is not empty of what settings are called.
func (l *loader) names(of func(Setting) string) []string {
	var names []string
	for _, s := range l.settings {
		if n := of(s); n != "" {
			names = append(names, n)
		}
	}
	return names
}
