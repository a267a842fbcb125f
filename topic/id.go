package topic

import (
	"encoding/base64"
	"fmt"
)

// ID is the identity that the broker gives a topic when it is created. A
// topic that is deleted and created again has the same name and another ID.
type ID [16]byte

// String returns the ID as Kafka's tools print it: URL-safe base64 without
// padding.
func (id ID) String() string { return base64.RawURLEncoding.EncodeToString(id[:]) }

// MarshalText encodes the ID as String does.
func (id ID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText decodes what String returns.
func (id *ID) UnmarshalText(b []byte) error {
	var buf [18]byte // room for what is too long
	if base64.RawURLEncoding.DecodedLen(len(b)) != len(id) {
		return fmt.Errorf("topic ID %q: not 22 characters", b)
	}
	n, err := base64.RawURLEncoding.Strict().Decode(buf[:], b)
	if err != nil || n != len(id) {
		return fmt.Errorf("topic ID %q: not base64", b)
	}
	copy(id[:], buf[:])
	return nil
}
