// Command gotest runs go test with the arguments it is given and shows what go
// test shows without -v: a line for each package, and the output of what
// failed. Beyond that it fails when a test skipped because the tests were built
// without a tag, and lists every other skip with its reason, so that no test is
// left out in silence.
//
// A test that needs a tag says so in its skip: "needs the build tag synctests".
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
)

// wantsTag finds the skips of tests that need a build tag, however they put it.
var wantsTag = regexp.MustCompile(`\btags?\b`)

// skippedInBubble is said by a test that skipped in a bubble of testing/synctest,
// which go test reports as one that passed.
const skippedInBubble = "needs the build tag "

func main() {
	if err := run(os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "gotest:", err)
		os.Exit(1)
	}
}

// run runs go test and reports on it. A test that failed, a package that did
// not build and a skip for want of a tag are errors.
func run(args []string, stdout, stderr io.Writer) error {
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = stderr
	events, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	skips, reportErr := report(events, stdout)
	// What could not be understood must not block go test on a full pipe.
	_, drainErr := io.Copy(io.Discard, events)
	return errors.Join(cmd.Wait(), reportErr, drainErr, skips.err(stdout))
}

// event is one line of the output of go test -json.
type event struct {
	Action      string
	Package     string
	ImportPath  string // of output of the compiler, in place of Package
	Test        string
	Output      string
	FailedBuild string
}

// skip is a test that did not run, and what it gave as the reason.
type skip struct{ test, reason string }

type skips []skip

// err lists the skips. It returns an error when one was for want of a tag.
func (ss skips) err(w io.Writer) error {
	var untagged []string
	for _, s := range ss {
		fmt.Fprintf(w, "skipped  %s: %s\n", s.test, s.reason)
		if wantsTag.MatchString(s.reason) {
			untagged = append(untagged, s.test)
		}
	}
	if untagged != nil {
		return fmt.Errorf("%d tests skipped for want of a build tag: %s", len(untagged), strings.Join(untagged, ", "))
	}
	return nil
}

// report reads the events of go test -json, prints what a reader wants to see
// of them, and returns the tests that skipped.
func report(events io.Reader, w io.Writer) (skips, error) {
	var found skips
	type test struct{ pkg, name string }
	output := make(map[test]*bytes.Buffer) // what tests have printed that have not ended
	dec := json.NewDecoder(events)
	for {
		var e event
		if err := dec.Decode(&e); err == io.EOF {
			return found, nil
		} else if err != nil {
			return found, fmt.Errorf("read the output of go test: %w", err)
		}
		id := test{e.Package, e.Test}
		switch e.Action {
		case "build-output":
			fmt.Fprint(w, e.Output)
		case "output":
			if output[id] == nil {
				output[id] = new(bytes.Buffer)
			}
			output[id].WriteString(e.Output)
		case "pass", "skip", "fail":
			var said string
			if b := output[id]; b != nil {
				said = b.String()
				delete(output, id)
			}
			switch {
			case e.Test == "":
				// A test that the end of its package cut short has no event of its own.
				for t, b := range output {
					if t.pkg == e.Package {
						fmt.Fprint(w, b.String())
						delete(output, t)
					}
				}
				if e.Action != "fail" {
					said = resultLine(said)
				}
				fmt.Fprint(w, said)
			case e.Action == "fail":
				fmt.Fprint(w, said)
			case e.Action == "skip", strings.Contains(said, skippedInBubble):
				found = append(found, skip{e.Package + "." + e.Test, reason(said)})
			}
		}
	}
}

// resultLine returns the lines of a package's output that say how it went,
// without what it printed on the way.
func resultLine(said string) string {
	var b strings.Builder
	for line := range strings.Lines(said) {
		if strings.HasPrefix(line, "ok  \t") || strings.HasPrefix(line, "?   \t") || strings.HasPrefix(line, "\t") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// reason returns what a skipped test said, in one line.
func reason(said string) string {
	var kept []string
	for line := range strings.Lines(said) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "=== ") && !strings.HasPrefix(line, "--- ") {
			kept = append(kept, line)
		}
	}
	if kept == nil {
		return "no reason given"
	}
	return strings.Join(kept, " ")
}
