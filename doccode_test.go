package pawl_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Every block of Go in the documentation compiles against this module, and the
// tests among them pass. In a page, a fence says what the block is:
//
//   - "go": a package of its own, but for its package clause and its imports,
//     or the statements of a function;
//   - "go counter.go": a file; the files of a page are one package;
//   - "golang": code of another project, which is not looked at.
//
// What a block refers to and need not be shown stands before it, in a comment
// that begins with "<!-- go". A line of three dots there stands for the block.
func TestDocCode(t *testing.T) {
	var pages []page
	for _, name := range markdown(t) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, page{filepath.ToSlash(name), string(text)})
	}
	if errs := checkDocCode(t, pages); errs != "" {
		t.Error(errs)
	}
}

// What is wrong with a block is found, at its line.
func TestDocCodeFindsErrors(t *testing.T) {
	got := checkDocCode(t, []page{{"wrong.md", strings.Join([]string{
		"```go", "var words = topic.Strong(\"words\")", "```", // line 2
		"```go a.go", "var one = 1", "```",
		"```go b_test.go", "func TestOne(t *testing.T) {", "\tt.Fatal(one)", "}", "```", // line 9
		"<!-- go", "func sum(a, b int) int {", "...", "}", "-->",
		"```go", "return a + c", "```", // line 18
		"```golang", "nothing of ours", "```",
	}, "\n")}})
	for _, want := range []string{"wrong.md:2:", "topic.Strong", "wrong.md:9: 1", "wrong.md:18:", "undefined: c"} {
		if !strings.Contains(got, want) {
			t.Errorf("nothing is said of %q:\n%s", want, got)
		}
	}
	if strings.Contains(got, "nothing of ours") {
		t.Errorf("the code of another project was looked at:\n%s", got)
	}
}

// What a document links to in this repository is there.
func TestDocLinks(t *testing.T) {
	links, checked := regexp.MustCompile(`\]\(([^)\s]+)\)`), 0
	code := regexp.MustCompile("(?ms)^```.*?^```$|`[^`]*`")
	for _, name := range markdown(t) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, link := range links.FindAllStringSubmatch(code.ReplaceAllString(string(text), ""), -1) {
			target, _, _ := strings.Cut(link[1], "#")
			if target == "" || strings.Contains(target, "://") {
				continue
			}
			checked++
			if _, err := os.Stat(filepath.Join(filepath.Dir(name), filepath.FromSlash(target))); err != nil {
				t.Errorf("%s links to %s: %v", name, link[1], err)
			}
		}
	}
	if checked == 0 {
		t.Error("no links found in the documentation")
	}
}

// page is a document, by its path from the module's root.
type page struct{ name, text string }

// markdown lists the documents.
func markdown(t *testing.T) []string {
	names, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir("docs", func(name string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(name, ".md") {
			names = append(names, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// checkDocCode makes a module of the blocks of the pages, builds and tests it,
// and returns what is wrong, or nothing.
func checkDocCode(t *testing.T, pages []page) string {
	t.Helper()
	root, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name, text string) {
		name = filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(name), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	// It requires what this module does, so that nothing is looked up.
	mod, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	sum, err := os.ReadFile("go.sum")
	if err != nil {
		t.Fatal(err)
	}
	write("go.mod", strings.Replace(string(mod), "module "+module, "module doccode", 1)+
		fmt.Sprintf("\nrequire %s v0.0.0\n\nreplace %[1]s => %q\n", module, root))
	write("go.sum", string(sum))

	var errs strings.Builder
	files := 0
	for _, p := range pages {
		for name, text := range packages(p, &errs) {
			files++
			write(name, text)
		}
	}
	if files == 0 && errs.Len() == 0 {
		t.Fatal("no Go in the documentation")
	}
	// The tags are those of this module's own tests, so that what both are built
	// of is built once. Packages without tests are compiled too.
	cmd := exec.Command("go", "test", "-tags", "synctests,invariants", "./...")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod", "GOPROXY=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		fmt.Fprintf(&errs, "go test: %v\n%s", err, out)
	}
	return errs.String()
}

// block is Go in a page.
type block struct {
	file   string // its name, or none
	line   int    // of the page, where its text begins
	text   string
	hidden string // what the comment before it holds
	at     int    // the line of the page where that begins
}

// packages returns the files of a page's packages, and notes what is wrong with
// how the page is written.
func packages(p page, errs *strings.Builder) map[string]string {
	files := make(map[string]string)
	dir := strings.ReplaceAll(strings.TrimSuffix(p.name, ".md"), "/", "_")
	named := make(map[string]bool)
	program := false // the named files have a main function
	for i, b := range blocks(p) {
		sub, name := fmt.Sprintf("%s/%d", dir, i), "block.go"
		if b.file != "" {
			sub, name = dir+"/files", b.file
		}
		file := path.Join(sub, name)
		if _, ok := files[file]; ok {
			fmt.Fprintf(errs, "%s:%d: the page has two files %s\n", p.name, b.line, b.file)
		}
		source, hidden := b.source(p.name)
		files[file] = source
		if hidden != "" {
			files[strings.TrimSuffix(file, ".go")+"_hidden.go"] = hidden
		}
		if b.file == "" {
			clause := packageOf(source)
			for _, f := range []string{file, strings.TrimSuffix(file, ".go") + "_hidden.go"} {
				if text, ok := files[f]; ok {
					files[f] = withClause(text, clause)
				}
			}
			continue
		}
		named[file] = true
		if hidden != "" {
			named[strings.TrimSuffix(file, ".go")+"_hidden.go"] = true
		}
		program = program || packageOf(source) == "main"
	}
	clause := "example"
	if program {
		clause = "main"
	}
	for f := range named {
		files[f] = withClause(files[f], clause)
	}
	return files
}

// blocks finds the blocks of Go in a page.
func blocks(p page) (found []block) {
	var open *block // the one that is being read
	other := false  // inside a block of another language
	hidden, at, inComment := "", 0, false
	for i, line := range strings.Split(p.text, "\n") {
		language, file, _ := strings.Cut(strings.TrimPrefix(line, "```"), " ")
		fence := strings.HasPrefix(line, "```")
		switch {
		case open != nil && line == "```":
			found = append(found, *open)
			open = nil
		case open != nil:
			open.text += line + "\n"
		case other:
			other = line != "```"
		case inComment && line == "-->":
			inComment = false
		case inComment:
			hidden += line + "\n"
		case line == "<!-- go":
			hidden, at, inComment = "", i+2, true
		case fence && language == "go":
			open = &block{file: strings.TrimSpace(file), line: i + 2, hidden: hidden, at: at}
			hidden = ""
		case fence:
			other, hidden = true, ""
		case strings.TrimSpace(line) != "":
			hidden = ""
		}
	}
	return found
}

// source returns the block as a file without a package clause, whose lines are
// those of the page, and a second one with what it refers to.
func (b block) source(page string) (source, hidden string) {
	text := fmt.Sprintf("//line %s:%d\n%s", page, b.line, b.text)
	if before, after, ok := strings.Cut(b.hidden, "...\n"); ok {
		n := b.at + strings.Count(before, "\n") + 1
		text = fmt.Sprintf("//line %s:%d\n%s%s//line %s:%d\n%s", page, b.at, before, text, page, n, after)
	} else {
		if b.hidden != "" {
			hidden = fmt.Sprintf("//line %s:%d\n%s", page, b.at, b.hidden)
		}
		if !hasClause(text) {
			if _, err := parser.ParseFile(token.NewFileSet(), "", withClause(text, "p"), 0); err != nil {
				body := "func _() {\n" + text + "}\n"
				if _, err := parser.ParseFile(token.NewFileSet(), "", withClause(body, "p"), 0); err == nil {
					text = body
				}
			}
		}
	}
	return text, hidden
}

func hasClause(text string) bool {
	f, err := parser.ParseFile(token.NewFileSet(), "", text, parser.PackageClauseOnly)
	return err == nil && f.Name != nil
}

// packageOf returns the name of the package that a file without a clause
// belongs to.
func packageOf(text string) string {
	f, err := parser.ParseFile(token.NewFileSet(), "", withClause(text, "p"), 0)
	if err == nil && f.Scope != nil {
		if o := f.Scope.Lookup("main"); o != nil && o.Kind == ast.Fun {
			return "main"
		}
	}
	return "example"
}

// imported says what each name of a package that a block uses stands for.
var imported = func() map[string]string {
	m := make(map[string]string)
	for _, p := range []string{
		"bytes", "cmp", "context", "encoding/json", "errors", "fmt", "io", "iter", "log", "log/slog", "maps", "math", "net/http", "os", "slices", "strconv", "strings", "sync", "testing", "testing/synctest", "time",
		module, module + "/broker", module + "/cluster", module + "/consumer", module + "/consumertest", module + "/messaging", module + "/store", module + "/topic", module + "/topic/registry",
	} {
		m[path.Base(p)] = p
	}
	return m
}()

// withClause gives a file that has no package clause one, and the imports that
// it needs.
func withClause(text, name string) string {
	if hasClause(text) {
		return text
	}
	file := "package " + name + "\n"
	f, err := parser.ParseFile(token.NewFileSet(), "", file+text, 0)
	if err != nil {
		return file + text // the compiler says what is wrong
	}
	needed := make(map[string]bool)
	for _, id := range f.Unresolved {
		if p, ok := imported[id.Name]; ok {
			needed[p] = true
		}
	}
	if len(f.Imports) == 0 {
		for _, p := range slices.Sorted(maps.Keys(needed)) {
			file += fmt.Sprintf("import %q\n", p)
		}
	}
	return file + text
}
