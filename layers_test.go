package pawl_test

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/pawlstream/pawl"

// layers lists the packages of the module, from the top down. A package imports
// only packages of lower layers, never one of its own. Tests import what they
// like. A pattern that ends in /* stands for all that is below it.
var layers = [][]string{
	{"cmd/pawl", "bench/*", "scripts/*"},
	{"internal/cli"},
	{"examples/*/cmd"},
	{"examples/*"},
	{".", "consumertest"},
	{"consumer", "messaging"},
	{"internal/changelog", "internal/checkpoint", "internal/dashboard"},
	{"store", "broker", "internal/kafka", "internal/devbroker", "topic/registry", "internal/config"},
	{"topic", "cluster", "internal/admin", "internal/clock", "internal/invariants", "internal/signals"},
}

// testsOnly are packages that hold no code but tests, and so have no layer.
var testsOnly = []string{"internal/sim"}

// wrapped says which packages may import a big dependency: what they don't
// show, no other package depends on. The benchmarks compare Pawl with a loop
// over the bare Kafka client.
var wrapped = map[string][]string{
	"github.com/cockroachdb/pebble": {"store", "broker"},
	"github.com/twmb":               {"internal/kafka", "internal/devbroker", "broker", "topic/registry", "bench/*"},
}

// A file's imports, as far as the rules look at them.
type file struct {
	name    string // from the module's root
	pkg     string // the directory that it is in
	imports []string
}

func TestLayers(t *testing.T) {
	files := source(t)
	if len(files) == 0 {
		t.Fatal("no source files found")
	}
	for _, breach := range breaches(files) {
		t.Error(breach)
	}
}

// The rules find what they are there to find.
func TestBreaches(t *testing.T) {
	for _, tt := range []struct {
		pkg, imports string
		want         string // in the breach; empty for none
	}{
		{"consumer", module + "/store", ""},
		{"consumer", module + "/topic", ""},
		{"consumer", module + "/messaging", "layer"},
		{"messaging", module + "/consumer", "layer"},
		{"messaging", module + "/consumertest", "layer"},
		{"store", module + "/internal/kafka", "layer"},
		{"store", module + "/consumer", "layer"},
		{"topic", module + "/topic/registry", "layer"},
		{"topic/registry", module + "/topic", ""},
		{".", module + "/consumer", ""},
		{".", module + "/consumertest", "layer"},
		{"store", module, "layer"},
		{"consumer", module + "/internal/sim", "tests alone"},
		{"internal/newcomer", module + "/topic", "in no layer"},
		{"examples/wordcount", module, ""},
		{"examples/wordcount", module + "/consumer", ""},
		{"examples/wordcount", module + "/internal/kafka", "public"},
		{"examples/wordcount", module + "/examples/orders", "layer"},
		{"examples/wordcount", "strings", ""},
		{"examples/wordcount", "golang.org/x/sync/errgroup", "public"},
		{"examples/wordcount/cmd", module + "/examples/wordcount", ""},
		{"examples/wordcount/cmd", module + "/internal/cli", "layer"},
		{"internal/cli", module + "/examples/wordcount", ""},
		{"cmd/pawl", module + "/internal/cli", ""},
		{"store", "github.com/cockroachdb/pebble/v2", ""},
		{"broker", "github.com/cockroachdb/pebble/v2/vfs", ""},
		{"consumer", "github.com/cockroachdb/pebble/v2", "may not import"},
		{"internal/kafka", "github.com/twmb/franz-go/pkg/kgo", ""},
		{"bench", "github.com/twmb/franz-go/pkg/kgo", ""},
		{"bench/peers", "github.com/twmb/franz-go/pkg/kgo", ""},
		{"messaging", "github.com/twmb/franz-go/pkg/kmsg", "may not import"},
		{"internal/util", "fmt", "says nothing"},
		{"store/types", "fmt", "says nothing"},
	} {
		got := strings.Join(breaches([]file{{path.Join(tt.pkg, "x.go"), tt.pkg, []string{tt.imports}}}), "\n")
		if tt.want == "" && got != "" {
			t.Errorf("%s importing %s: %s", tt.pkg, tt.imports, got)
		}
		if tt.want != "" && !strings.Contains(got, tt.want) {
			t.Errorf("%s importing %s: breaches %q, want one with %q", tt.pkg, tt.imports, got, tt.want)
		}
	}
}

// breaches says, a line each, which imports break which rule.
func breaches(files []file) []string {
	var found []string
	seen := make(map[string]bool) // packages whose name and layer were looked at
	for _, f := range files {
		report := func(format string, args ...any) {
			found = append(found, f.name+": "+fmt.Sprintf(format, args...))
		}
		layer := layerOf(f.pkg)
		if !seen[f.pkg] {
			seen[f.pkg] = true
			if slices.Contains([]string{"util", "utils", "common", "types", "helpers", "misc", "base"}, path.Base(f.pkg)) {
				report("a package named %s says nothing of what is in it", path.Base(f.pkg))
			}
			switch {
			case slices.Contains(testsOnly, f.pkg):
				report("package %s is for tests alone", f.pkg)
			case layer < 0:
				report("package %s is in no layer: put it where its imports allow, in layers_test.go and ARCHITECTURE.md", f.pkg)
			}
		}
		for _, imp := range f.imports {
			for prefix, allowed := range wrapped {
				if within(imp, prefix) && !matches(f.pkg, allowed) {
					report("%s may not import %s: of Pawl's packages only %s see it", f.pkg, imp, strings.Join(allowed, ", "))
				}
			}
			local, isLocal := strings.CutPrefix(imp+"/", module+"/")
			local = strings.TrimSuffix(local, "/")
			if local == "" {
				local = "."
			}
			if within(f.pkg, "examples") && (isLocal && slices.Contains(strings.Split(local, "/"), "internal") || !isLocal && strings.Contains(strings.Split(imp, "/")[0], ".")) {
				report("%s may not import %s: examples show what users have, which is Pawl's public packages and the standard library", f.pkg, imp)
			}
			if !isLocal || layer < 0 {
				continue
			}
			switch to := layerOf(local); {
			case slices.Contains(testsOnly, local):
				report("%s may not import %s, which is for tests alone", f.pkg, local)
			case to >= 0 && to <= layer:
				report("%s, in layer %d, may not import %s, in layer %d", f.pkg, len(layers)-1-layer, local, len(layers)-1-to)
			}
		}
	}
	return found
}

// layerOf returns the index in layers of the package's layer, or -1.
func layerOf(pkg string) int {
	return slices.IndexFunc(layers, func(layer []string) bool { return matches(pkg, layer) })
}

// matches says whether one of the patterns stands for the package.
func matches(pkg string, patterns []string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		if dir, ok := strings.CutSuffix(p, "/*"); ok {
			return within(pkg, dir)
		}
		ok, err := path.Match(p, pkg)
		if err != nil {
			panic(p + ": " + err.Error())
		}
		return ok
	})
}

// within says whether a path is dir or lies below it.
func within(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

// source reads the imports of all files of the module that are not tests, of
// all systems and all build tags.
func source(t *testing.T) []file {
	t.Helper()
	var files []file
	fset := token.NewFileSet()
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name == "." {
				return nil
			}
			if d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") || strings.HasPrefix(d.Name(), "_") {
				return filepath.SkipDir
			}
			if _, err := os.Stat(filepath.Join(name, "go.mod")); err == nil {
				return filepath.SkipDir // another module has rules of its own
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		parsed, err := parser.ParseFile(fset, name, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		f := file{name: filepath.ToSlash(name), pkg: path.Dir(filepath.ToSlash(name))}
		for _, spec := range parsed.Imports {
			imp, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return fmt.Errorf("%s: import %s: %w", name, spec.Path.Value, err)
			}
			f.imports = append(f.imports, imp)
		}
		files = append(files, f)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
