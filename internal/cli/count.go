package cli

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// The expectation of a demo run is made here, from the input itself, by code
// that shares nothing with the program that is checked against it: it decodes
// the lines on its own, and counts in plain maps.

// tally is what is counted for a path, an author, or a day of an author's.
type tally struct {
	Events  int64 `json:"events"`
	Added   int64 `json:"added"`
	Deleted int64 `json:"deleted"`
}

func (t tally) plus(u tally) tally {
	return tally{t.Events + u.Events, t.Added + u.Added, t.Deleted + u.Deleted}
}

// authorDay is an author and a day, in UTC, such as 2011-08-02.
type authorDay struct{ author, day string }

// totals are all that the program keeps.
type totals struct {
	paths      map[string]tally
	authors    map[string]tally
	authorDays map[authorDay]tally
}

func newTotals() totals {
	return totals{make(map[string]tally), make(map[string]tally), make(map[authorDay]tally)}
}

// sum adds up the totals of all paths.
func (t totals) sum() (all tally) {
	for _, one := range t.paths {
		all = all.plus(one)
	}
	return all
}

// days is the number of different days.
func (t totals) days() int {
	days := make(map[string]bool)
	for k := range t.authorDays {
		days[k.day] = true
	}
	return len(days)
}

// event is one line of the input, and the key that it goes by.
type event struct {
	key  []byte
	line []byte
}

// input is all of the input, and what it adds up to.
type input struct {
	events []event
	want   totals
}

// lineMax is the longest line: what Kafka takes in one message by default,
// with room for the rest of the message.
const lineMax = 1_000_000

// readInput reads all of the input, one JSON object a line, plain or as gzip.
// Its error says in which line something is wrong.
func readInput(r io.Reader) (*input, error) {
	buffered := bufio.NewReaderSize(r, 64<<10)
	r = buffered
	if magic, err := buffered.Peek(2); err == nil && magic[0] == 0x1f && magic[1] == 0x8b {
		unpacked, err := gzip.NewReader(buffered)
		if err != nil {
			return nil, fmt.Errorf("unpack: %w", err)
		}
		r = unpacked
	}
	in := &input{want: newTotals()}
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 64<<10), lineMax+2)
	n := 0
	for lines.Scan() {
		n++
		line := bytes.Clone(lines.Bytes())
		path, err := in.want.add(line)
		if err == nil && len(line) > lineMax {
			err = errLongLine
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		in.events = append(in.events, event{key: []byte(path), line: line})
	}
	switch err := lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, fmt.Errorf("line %d: %w", n+1, errLongLine)
	case err != nil:
		return nil, fmt.Errorf("after line %d: %w", n, err)
	case n == 0:
		return nil, errors.New("it is empty")
	}
	return in, nil
}

var errLongLine = fmt.Errorf("it is longer than %d bytes", lineMax)

// add counts one line, and returns the path that it is about.
func (t totals) add(line []byte) (path string, err error) {
	var fields map[string]any
	d := json.NewDecoder(bytes.NewReader(line))
	d.UseNumber()
	if err := d.Decode(&fields); err != nil {
		return "", fmt.Errorf("want a JSON object: %w", jsonError(err))
	}
	if _, err := d.Token(); err != io.EOF {
		return "", errors.New("want one JSON object, and there is more on the line")
	}
	if fields == nil {
		return "", errors.New("want a JSON object, not null")
	}
	path, err = text(fields, "path")
	if err != nil {
		return "", err
	}
	author, err := text(fields, "author")
	if err != nil {
		return "", err
	}
	at, err := whole(fields, "authored_at", false)
	if err != nil {
		return "", err
	}
	added, err := whole(fields, "added", true)
	if err != nil {
		return "", err
	}
	deleted, err := whole(fields, "deleted", true)
	if err != nil {
		return "", err
	}
	if added < 0 || deleted < 0 {
		return "", fmt.Errorf("added is %d and deleted %d: want no negative number of lines", added, deleted)
	}
	one := tally{1, added, deleted}
	year, month, day := time.Unix(at, 0).UTC().Date()
	onDay := authorDay{author, fmt.Sprintf("%04d-%02d-%02d", year, month, day)}
	t.paths[path] = t.paths[path].plus(one)
	t.authors[author] = t.authors[author].plus(one)
	t.authorDays[onDay] = t.authorDays[onDay].plus(one)
	return path, nil
}

// jsonError says what is wrong in the words of a reader of lines.
func jsonError(err error) error {
	var kind *json.UnmarshalTypeError
	switch {
	case errors.Is(err, io.EOF):
		return errors.New("the line is empty")
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("the line ends in the middle of it")
	case errors.As(err, &kind):
		return fmt.Errorf("it is %s %s", article(kind.Value), kind.Value)
	}
	return err
}

func article(noun string) string {
	if strings.ContainsAny(noun[:1], "aeiou") {
		return "an"
	}
	return "a"
}

func text(fields map[string]any, name string) (string, error) {
	switch v := fields[name].(type) {
	case string:
		if v != "" {
			return v, nil
		}
		return "", fmt.Errorf("%q is empty", name)
	case nil:
		return "", fmt.Errorf("there is no %q", name)
	default:
		return "", fmt.Errorf("%q is not text", name)
	}
}

// whole returns a field that is a whole number; or, if it may be, null, which
// counts as 0.
func whole(fields map[string]any, name string, maybeNull bool) (int64, error) {
	v, ok := fields[name]
	if !ok {
		return 0, fmt.Errorf("there is no %q", name)
	}
	if v == nil && maybeNull {
		return 0, nil
	}
	if number, ok := v.(json.Number); ok {
		if n, err := number.Int64(); err == nil {
			return n, nil
		}
	}
	return 0, fmt.Errorf("%q is not a whole number", name)
}
