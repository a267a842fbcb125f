package config

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pawlstream/pawl/cluster"
)

// Value is a place in memory that text can be parsed into.
// Values are made by the functions of this package.
type Value interface {
	// Set parses text. Its error says what is wanted, and not what was given.
	Set(text string) error

	// Form is how the value is written, for the usage: DURATION.
	Form() string
}

type value struct {
	form string
	set  func(string) error
}

func (v value) Set(text string) error { return v.set(text) }
func (v value) Form() string          { return v.form }

// Text is a value of any text.
func Text(p *string, form string) Value {
	return value{form, func(s string) error { *p = s; return nil }}
}

// SecretText is a value of any text that is shown nowhere.
func SecretText(p *cluster.Secret) Value {
	return value{"SECRET", func(s string) error { *p = cluster.Secret(s); return nil }}
}

// path is a value that names a file or a directory. Said in a file, it is
// relative to that file.
type path struct{ value }

// Path is a value that names a file or a directory.
func Path(p *string, form string) Value { return path{Text(p, form).(value)} }

// Parsed is a value with a parser of its own.
func Parsed[T any](p *T, form string, parse func(string) (T, error)) Value {
	return value{form, func(s string) (err error) {
		v, err := parse(s)
		if err == nil {
			*p = v
		}
		return err
	}}
}

// list is a value whose flag may be given again, to add to it.
type list struct{ value }

// List is a value of several texts, between commas. Its flag may be given
// several times.
func List(p *[]string, form string) Value {
	return ParsedList(p, form+",…", func(s string) ([]string, error) {
		var list []string
		for item := range strings.SplitSeq(s, ",") {
			if item = strings.TrimSpace(item); item == "" {
				return nil, errors.New("want items between commas, none of them empty")
			}
			list = append(list, item)
		}
		return list, nil
	})
}

// ParsedList is a list with a parser of its own, which is given what stands
// between all the commas.
func ParsedList[T any](p *[]T, form string, parse func(string) ([]T, error)) Value {
	return list{Parsed(p, form, parse).(value)}
}

// Choice is a value that is one of several texts.
func Choice[T ~string](p *T, choices ...T) Value {
	names := make([]string, len(choices))
	for i, c := range choices {
		names[i] = string(c)
	}
	return Parsed(p, strings.Join(names, "|"), func(s string) (T, error) {
		if !slices.Contains(names, s) {
			return "", errors.New("want " + oneOf(names))
		}
		return T(s), nil
	})
}

// folded is a choice that may be written in any case, and is shown in one.
type folded struct {
	value
	names []string
}

// FoldedChoice is a value that is one of several texts, in any case.
func FoldedChoice[T ~string](p *T, choices ...T) Value {
	f := folded{names: make([]string, len(choices))}
	for i, c := range choices {
		f.names[i] = string(c)
	}
	exact := Choice(p, choices...)
	f.value = value{exact.Form(), func(s string) error { return exact.Set(f.canonical(s)) }}
	return f
}

// canonical is the choice that a text means.
func (f folded) canonical(text string) string {
	for _, name := range f.names {
		if strings.EqualFold(name, text) {
			return name
		}
	}
	return text
}

// canonical is a value's text as it is shown.
func canonical(v Value, text string) string {
	if f, ok := v.(folded); ok {
		return f.canonical(text)
	}
	return text
}

func oneOf(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:len(names)-1], ", ") + " or " + names[len(names)-1]
}

// boolean is a value whose flag may stand alone.
type boolean struct{ value }

// Bool is a value that is true or false. Its flag alone means true.
func Bool(p *bool) Value {
	return boolean{Parsed(p, "", func(s string) (bool, error) {
		switch s {
		case "true":
			return true, nil
		case "false":
			return false, nil
		}
		return false, errors.New("want true or false")
	}).(value)}
}

// number is a value that is shown as a number.
type number struct{ value }

// Int is a whole number of at least low.
func Int[T ~int | ~int16 | ~int32 | ~int64](p *T, low T) Value {
	return number{Parsed(p, "N", func(s string) (T, error) {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil || int64(T(n)) != n {
			if errors.Is(err, strconv.ErrRange) || err == nil {
				return 0, errors.New("want a smaller number")
			}
			return 0, errors.New("want a whole number")
		}
		if T(n) < low {
			return 0, fmt.Errorf("want at least %d", low)
		}
		return T(n), nil
	}).(value)}
}

// Duration is a time with its unit. Zero is refused: in a Config it would
// mean the default.
func Duration(p *time.Duration) Value {
	return Parsed(p, "DURATION", func(s string) (time.Duration, error) {
		d, err := time.ParseDuration(s)
		switch {
		case err != nil:
			if _, err := strconv.ParseFloat(s, 64); err == nil {
				return 0, fmt.Errorf("want a unit with it: say %.20ss for seconds or %.20sms for milliseconds", s, s)
			}
			return 0, errors.New("want a duration such as 100ms, 30s or 5m")
		case d <= 0:
			return 0, errors.New("want a duration above zero")
		}
		return d, nil
	})
}

// units of sizes. Kafka's tools say bytes; people say MB and mean either.
var units = map[string]int64{
	"b":   1,
	"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
	"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40,
	"kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12,
}

// Bytes is a size: a number with a unit, which is B for bytes. KiB, MiB and GiB
// are powers of 1,024, KB, MB and GB powers of 1,000, and K, M and G mean KiB,
// MiB and GiB. Zero is refused: in a Config it would mean the default.
func Bytes(p *int64) Value {
	return Parsed(p, "SIZE", func(s string) (int64, error) {
		wanted := errors.New("want a size such as 64MiB or 1.5GiB")
		i := strings.IndexFunc(s, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
		if i < 0 {
			if _, err := strconv.ParseFloat(s, 64); err == nil || errors.Is(err, strconv.ErrRange) {
				return 0, fmt.Errorf("want a unit with it: say %.20sMiB for mebibytes or %.20sB for bytes", s, s)
			}
			return 0, wanted
		}
		unit, ok := units[strings.ToLower(strings.TrimSpace(s[i:]))]
		if !ok {
			return 0, wanted
		}
		if n, err := strconv.ParseInt(s[:i], 10, 64); err == nil && n <= math.MaxInt64/unit {
			if n == 0 {
				return 0, errors.New("want a size above zero")
			}
			return n * unit, nil
		}
		f, err := strconv.ParseFloat(s[:i], 64)
		switch n := f * float64(unit); {
		case err != nil && !errors.Is(err, strconv.ErrRange):
			return 0, wanted
		case n >= math.MaxInt64 || err != nil:
			return 0, errors.New("want a smaller size")
		case n < 1:
			return 0, errors.New("want a size above zero")
		default:
			return int64(n), nil
		}
	})
}
