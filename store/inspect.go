package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// An AnyTable is a table as tools see it, which don't know its types: its keys
// are named by text, and its values are whatever they are. The text of a key is
// the key itself where it is a string, and else its JSON.
type AnyTable interface {
	Name() string

	// GetText returns the value of the key that a text names, and the key.
	GetText(tx *Transaction, text string) (e Entry, ok bool, err error)

	// ScanText goes over the table in key order, until yield returns false.
	ScanText(tx *Transaction, o TextRange, yield func(Entry) bool) error
}

// An Entry is one key of a table, and its value.
type Entry struct {
	Text string // that names the key
	Key  any
	Val  any
}

// A TextRange bounds a scan of a table by the texts of keys. Empty bounds are
// none.
type TextRange struct {
	From   string // the first key
	To     string // the first one beyond
	Prefix string // only keys whose text begins with it; of a table whose keys are strings
}

// Tables returns every table of the program, in order of their names.
func Tables() []AnyTable {
	registry.Lock()
	defer registry.Unlock()
	all := slices.Clone(registry.tables)
	slices.SortStableFunc(all, func(a, b AnyTable) int { return strings.Compare(a.Name(), b.Name()) })
	return slices.CompactFunc(all, func(a, b AnyTable) bool { return a.Name() == b.Name() })
}

// ErrKeyText is matched by an error of a text that names no key of a table.
var ErrKeyText = errors.New("text names no key")

// text returns the text that names a key.
func (t *Table[K, V]) text(k K) (string, error) {
	if v := reflect.ValueOf(&k).Elem(); v.Kind() == reflect.String {
		return v.String(), nil
	}
	b, err := json.Marshal(k)
	if err != nil {
		return "", fmt.Errorf("table %q: key %v: %w", t.name, k, err)
	}
	return string(b), nil
}

// parse returns the key that a text names.
func (t *Table[K, V]) parse(text string) (k K, err error) {
	if v := reflect.ValueOf(&k).Elem(); v.Kind() == reflect.String {
		v.SetString(text)
		return k, nil
	}
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	err = d.Decode(&k)
	if err == nil && d.More() {
		err = errors.New("there is more after it")
	}
	if err != nil {
		return k, fmt.Errorf("table %q has keys of type %v, and %w: %.60q: %v", t.name, reflect.TypeFor[K](), ErrKeyText, text, err)
	}
	return k, nil
}

// GetText implements [AnyTable].
func (t *Table[K, V]) GetText(tx *Transaction, text string) (e Entry, ok bool, err error) {
	k, err := t.parse(text)
	if err != nil {
		return e, false, err
	}
	v, ok, err := t.Get(tx, k)
	if err != nil || !ok {
		return e, false, err
	}
	e.Text, err = t.text(k)
	e.Key, e.Val = k, v
	return e, err == nil, err
}

// ScanText implements [AnyTable].
func (t *Table[K, V]) ScanText(tx *Transaction, o TextRange, yield func(Entry) bool) error {
	lower, upper := t.prefix, prefixEnd(t.prefix)
	if o.Prefix != "" {
		if reflect.TypeFor[K]().Kind() != reflect.String {
			return fmt.Errorf("table %q has keys of type %v, and %w by its beginning: %.60q", t.name, reflect.TypeFor[K](), ErrKeyText, o.Prefix)
		}
		o.From = max(o.From, o.Prefix) // strings are in the order of their bytes
	}
	for _, bound := range []struct {
		text string
		to   *[]byte
	}{{o.From, &lower}, {o.To, &upper}} {
		if bound.text == "" {
			continue
		}
		k, err := t.parse(bound.text)
		if err != nil {
			return err
		}
		*bound.to = t.key.AppendKey(bytes.Clone(t.prefix), k)
	}
	var failed error
	t.scan(tx, lower, upper, func(k K, v V) bool {
		text, err := t.text(k)
		if err != nil {
			failed = err
			return false
		}
		if o.Prefix != "" && !strings.HasPrefix(text, o.Prefix) {
			return false
		}
		return yield(Entry{Text: text, Key: k, Val: v})
	})
	return errors.Join(failed, tx.Err())
}

// MetaOf returns what was stored with the state that a View shows: the owner's
// position in it. It is nil where there is none yet.
func MetaOf(tx *Transaction) ([]byte, error) {
	if err := tx.readable(); err != nil {
		return nil, err
	}
	meta, ok, err := tx.d.get(tx.from, keyMeta, nil)
	if err != nil || !ok {
		return nil, err
	}
	return meta, nil
}

// Size returns how many bytes the database takes on the disk, and in memory for
// what is not there yet.
func (o *Owner) Size() int64 {
	m := o.d.db.Metrics()
	return int64(m.DiskSpaceUsage()) + int64(m.MemTable.Size)
}
