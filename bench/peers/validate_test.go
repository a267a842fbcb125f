package main

import (
	"bytes"
	"encoding/binary"
	"testing"
)

func count(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

func mapped(n uint64) []byte { return append(count(n), bytes.Repeat([]byte{0xff}, valueBytes-8)...) }

func TestCheckers(t *testing.T) {
	type output struct {
		key   string
		value []byte
	}
	for _, tt := range []struct {
		name    string
		outputs []output
		inputs  int64
		counts  bool
		good    bool
	}{
		{"counts that add up", []output{{"a", count(1)}, {"b", count(2)}, {"a", count(3)}}, 5, true, true},
		{"a count is missing", []output{{"a", count(1)}, {"b", count(2)}}, 5, true, false},
		{"a message counted twice", []output{{"a", count(3)}, {"b", count(3)}}, 5, true, false},
		{"a count that comes again", []output{{"a", count(3)}, {"b", count(2)}, {"a", count(3)}}, 5, true, false},
		{"a count that goes back", []output{{"a", count(3)}, {"b", count(2)}, {"a", count(2)}}, 5, true, false},
		{"no count", []output{{"a", []byte("x")}}, 1, true, false},
		{"all mapped", []output{{"", mapped(1)}, {"", mapped(0)}}, 2, false, true},
		{"one mapped twice", []output{{"", mapped(1)}, {"", mapped(1)}}, 2, false, false},
		{"one missing", []output{{"", mapped(1)}}, 2, false, false},
		{"one that was not sent", []output{{"", mapped(2)}, {"", mapped(0)}}, 2, false, false},
		{"one not inverted", []output{{"", make([]byte, valueBytes)}, {"", mapped(1)}}, 2, false, false},
	} {
		var c checker = &mapChecker{seen: make([]bool, tt.inputs)}
		if tt.counts {
			c = &countChecker{last: make(map[string]int64)}
		}
		var err error
		for _, o := range tt.outputs {
			if err = c.check([]byte(o.key), o.value); err != nil {
				break
			}
		}
		n := 0
		if err == nil {
			n, err = c.result(tt.inputs)
		}
		if tt.good && (err != nil || n != len(tt.outputs)) {
			t.Errorf("%s: %d outputs, %v; want %d", tt.name, n, err, len(tt.outputs))
		}
		if !tt.good && err == nil {
			t.Errorf("%s: no error", tt.name)
		}
	}
}
