package store

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// The stored format. It is frozen with the first release: what is logged is
// what is stored, so a changelog written by one version is read by all later
// ones.
//
//	key                              value
//	00 'v'                           uvarint: the version of this format
//	00 'm'                           the position, opaque to this package
//	01 key                           01 bytes                       a raw key
//	02 uvarint(len(name)) name key   02 uvarint(version) payload    a table's key
//	02 …                             04 uvarint(version) time payload   with the time of the write, in milliseconds
//	03 01 key                        03 time                        a timer
//	03 02 time key                   03                             the same, in the order of time
//
// Keys that begin with 00 belong to the database and are never logged. The
// first byte of a value names its format. A timer's time is twelve bytes, as
// TimeCodec has them, a value's eight, big-endian. The version inside a table's value is that of
// its codec, which is 0 until a codec has had a second. A logged null is a
// delete.
const (
	formatVersion = 1

	spaceOwn   = 0x00
	spaceRaw   = 0x01
	spaceTable = 0x02
	spaceTimer = 0x03

	valuePlain = 0x01
	valueTable = 0x02
	valueTimer = 0x03
	valueTimed = 0x04
)

var (
	keyVersion = []byte{spaceOwn, 'v'}
	keyMeta    = []byte{spaceOwn, 'm'}
)

// appendRawKey appends the stored form of a raw key.
func appendRawKey(dst, key []byte) []byte {
	return append(append(dst, spaceRaw), key...)
}

// tablePrefix is what every stored key of a table begins with. The length
// before the name keeps one table's keys from running into another's.
func tablePrefix(name string) []byte {
	p := append([]byte{spaceTable}, binary.AppendUvarint(nil, uint64(len(name)))...)
	return append(p, name...)
}

// prefixEnd is the least key above all keys that begin with prefix, nil if
// there is none.
func prefixEnd(prefix []byte) []byte {
	for i := len(prefix) - 1; i >= 0; i-- {
		if prefix[i] != 0xff {
			end := append([]byte(nil), prefix[:i+1]...)
			end[i]++
			return end
		}
	}
	return nil
}

// A decodedKey is a stored key taken apart.
type decodedKey struct {
	table string // the table's name; empty with raw
	raw   bool
	key   []byte // the user's part, which aliases the stored key
}

// decodeKey takes a stored key apart. The store's own keys and reserved ones
// are errors.
func decodeKey(stored []byte) (decodedKey, error) {
	if len(stored) == 0 {
		return decodedKey{}, errors.New("stored key is empty")
	}
	switch stored[0] {
	case spaceRaw:
		return decodedKey{raw: true, key: stored[1:]}, nil
	case spaceTable:
		n, w := binary.Uvarint(stored[1:])
		if w <= 0 || n > uint64(len(stored)-1-w) {
			return decodedKey{}, fmt.Errorf("stored key %x: table name is cut off", stored)
		}
		name := stored[1+w : 1+w+int(n)]
		return decodedKey{table: string(name), key: stored[1+w+int(n):]}, nil
	default:
		return decodedKey{}, fmt.Errorf("stored key %x: unknown key space %#02x", stored, stored[0])
	}
}

// CheckRecord reports whether a logged record is one that this version can
// apply: a key that isn't the store's own, with a value of a known format or
// none. A restore calls it for each record before it trusts a changelog.
func CheckRecord(key, value []byte) error {
	if len(key) > 0 && key[0] == spaceTimer {
		return checkTimer(key, value)
	}
	k, err := decodeKey(key)
	if err != nil {
		return err
	}
	if value == nil {
		return nil
	}
	if k.raw {
		_, err = decodePlain(value)
	} else {
		_, _, err = decodeTableValue(value)
	}
	return err
}

// appendPlain appends the stored form of a raw key's value.
func appendPlain(dst, val []byte) []byte {
	return append(append(dst, valuePlain), val...)
}

// decodePlain returns the user's bytes, which alias the stored ones.
func decodePlain(stored []byte) ([]byte, error) {
	if len(stored) == 0 || stored[0] != valuePlain {
		return nil, fmt.Errorf("stored value %x: not a plain value", clip(stored))
	}
	return stored[1:], nil
}

// appendTableHeader appends what stands before a table value's payload.
func appendTableHeader(dst []byte, version uint64) []byte {
	return binary.AppendUvarint(append(dst, valueTable), version)
}

// appendTimedHeader is the same with the time of the write, in milliseconds.
func appendTimedHeader(dst []byte, version uint64, at int64) []byte {
	return binary.BigEndian.AppendUint64(binary.AppendUvarint(append(dst, valueTimed), version), uint64(at))
}

// A valueHead is what stands before a table value's payload.
type valueHead struct {
	version uint64 // of the codec that wrote it
	at      int64  // when, in milliseconds; 0 if it doesn't say
}

// decodeTableValue takes a table's value apart. The payload aliases the stored
// bytes.
func decodeTableValue(stored []byte) (head valueHead, payload []byte, err error) {
	if len(stored) == 0 || stored[0] != valueTable && stored[0] != valueTimed {
		return head, nil, fmt.Errorf("stored value %x: not a table value", clip(stored))
	}
	version, w := binary.Uvarint(stored[1:])
	if w <= 0 {
		return head, nil, fmt.Errorf("stored value %x: codec version is cut off", clip(stored))
	}
	head.version, payload = version, stored[1+w:]
	if stored[0] == valueTable {
		return head, payload, nil
	}
	if len(payload) < 8 {
		return head, nil, fmt.Errorf("stored value %x: time is cut off", clip(stored))
	}
	head.at = int64(binary.BigEndian.Uint64(payload))
	return head, payload[8:], nil
}

// clip shortens what an error message shows of a value.
func clip(b []byte) []byte { return b[:min(len(b), 32)] }
