package store

import (
	"bytes"
	"testing"
)

// The stored format is frozen: these bytes are in databases and changelogs.
func TestFormatIsFrozen(t *testing.T) {
	value := func(b []byte, err error) []byte {
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for _, c := range []struct {
		what string
		got  []byte
		want string
	}{
		{"version key", keyVersion, "\x00v"},
		{"position key", keyMeta, "\x00m"},
		{"raw key", appendRawKey(nil, []byte("k")), "\x01k"},
		{"table prefix", tablePrefix("counts"), "\x02\x06counts"},
		{"long table prefix", tablePrefix(string(make([]byte, 200)))[:3], "\x02\xc8\x01"},
		{"plain value", appendPlain(nil, []byte("v")), "\x01v"},
		{"table value", appendTableHeader(nil, 0), "\x02\x00"},
		{"table value of a later version", appendTableHeader(nil, 300), "\x02\xac\x02"},
		{"table value with a time", appendTimedHeader(nil, 1, 0x0102030405), "\x04\x01\x00\x00\x00\x01\x02\x03\x04\x05"},
		{"int64 key", Int64.AppendKey(nil, -2), "\x7f\xff\xff\xff\xff\xff\xff\xfe"},
		{"int64 value", value(Int64.Append(nil, -2)), "\x03"},
		{"uint64 key", Uint64.AppendKey(nil, 300), "\x00\x00\x00\x00\x00\x00\x01\x2c"},
		{"uint64 value", value(Uint64.Append(nil, 300)), "\xac\x02"},
		{"float64 key", Float64.AppendKey(nil, 1), "\xbf\xf0\x00\x00\x00\x00\x00\x00"},
		{"negative float64 key", Float64.AppendKey(nil, -1), "\x40\x0f\xff\xff\xff\xff\xff\xff"},
		{"float64 value", value(Float64.Append(nil, 1)), "\x3f\xf0\x00\x00\x00\x00\x00\x00"},
		{"bool", Bool.AppendKey(nil, true), "\x01"},
		{"pair", PairOf(String, String).AppendKey(nil, Pair[string, string]{"a\x00b", "c"}), "a\x00\xffb\x00\x01c"},
		{"json", value(JSON[map[string]int]().Append(nil, map[string]int{"a": 1})), `{"a":1}`},
	} {
		if string(c.got) != c.want {
			t.Errorf("%s = %q, want %q", c.what, c.got, c.want)
		}
	}
	if formatVersion != 1 {
		t.Errorf("version %d, want 1", formatVersion)
	}
}

func TestPrefixEnd(t *testing.T) {
	for in, want := range map[string]string{"a": "b", "a\xff": "b", "a\xff\xff": "b", "\x02\x01a": "\x02\x01b"} {
		if got := prefixEnd([]byte(in)); string(got) != want {
			t.Errorf("prefixEnd(%q) = %q, want %q", in, got, want)
		}
	}
	if got := prefixEnd([]byte("\xff\xff")); got != nil {
		t.Errorf("prefixEnd(ff ff) = %q, want none", got)
	}
}

// Records of a changelog are taken apart without a panic, and what is taken
// apart is what was put together.
func FuzzCheckRecord(f *testing.F) {
	f.Add([]byte(nil), []byte(nil))
	f.Add([]byte("\x01k"), []byte("\x01v"))
	f.Add([]byte("\x02\x06countsa"), []byte("\x02\x00\x04"))
	f.Add([]byte("\x02\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), []byte("\x02\xff"))
	f.Add([]byte("\x00m"), []byte("position"))
	f.Add([]byte("\x02\x06counts"), []byte("\x02"))
	f.Add([]byte("\x02\x06countsa"), []byte("\x04\x01\x00\x00\x00\x00\x00\x00\x00\x01v"))
	f.Add([]byte("\x03\x01k"), []byte("\x03\x80\x00\x00\x00\x00\x00\x01\x02\x00\x00\x00\x07"))
	f.Add([]byte("\x03\x02\x80\x00\x00\x00\x00\x00\x01\x02\x00\x00\x00\x07k"), []byte("\x03"))
	f.Fuzz(func(t *testing.T, key, value []byte) {
		k, err := decodeKey(key)
		if err == nil {
			again := appendRawKey(nil, k.key)
			if !k.raw {
				again = append(tablePrefix(k.table), k.key...)
			}
			// A length may be written in more bytes than it takes.
			if !bytes.Equal(again, key) && len(again) >= len(key) {
				t.Errorf("key %x is taken apart to %+v, which is %x", key, k, again)
			}
		}
		if plain, err := decodePlain(value); err == nil && !bytes.Equal(appendPlain(nil, plain), value) {
			t.Errorf("value %x holds %x, which is another", value, plain)
		}
		if head, payload, err := decodeTableValue(value); err == nil {
			again := appendTableHeader(nil, head.version)
			if value[0] == valueTimed {
				again = appendTimedHeader(nil, head.version, head.at)
			}
			if again = append(again, payload...); len(again) >= len(value) && !bytes.Equal(again, value) {
				t.Errorf("value %x holds %+v, %x, which is another", value, head, payload)
			}
		}
		if CheckRecord(key, value) == nil && (len(key) == 0 || key[0] == spaceOwn) {
			t.Errorf("key %x of the store's own passes", key)
		}
	})
}
