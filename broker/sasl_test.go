package broker

import (
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"github.com/pawlstream/pawl/cluster"
)

// What a client sends as the nonce in its last message: the whole one, or, as
// librdkafka does, its own part once more before it. No other is taken, however
// well it is signed.
func TestScramNonce(t *testing.T) {
	for _, m := range []string{cluster.ScramSHA256, cluster.ScramSHA512} {
		h := scramHash(m)
		users := newAuthenticator([]User{{"ann", "secret"}}).scram[m]
		for _, tt := range []struct {
			what  string
			nonce func(client, broker string) string
			taken bool
		}{
			{"the whole one", func(c, b string) string { return c + b }, true},
			{"the client's part twice", func(c, b string) string { return c + c + b }, true},
			{"the client's part thrice", func(c, b string) string { return c + c + c + b }, false},
			{"the broker's part alone", func(_, b string) string { return b }, false},
			{"the client's part alone", func(c, _ string) string { return c }, false},
			{"another client's part", func(_, b string) string { return "other" + b }, false},
			{"something before it", func(c, b string) string { return "other" + c + b }, false},
			{"something behind it", func(c, b string) string { return c + b + "x" }, false},
			{"a part of the broker's", func(c, b string) string { return c + b[:len(b)-1] }, false},
			{"the whole one twice", func(c, b string) string { return c + b + c + b }, false},
			{"nothing", func(_, _ string) string { return "" }, false},
		} {
			x := &scramExchange{hash: h, users: users}
			const client = "fyko+d2lbbFgONRv9qkxdawL"
			bare := "n=ann,r=" + client
			first, _, err := x.step([]byte("n,," + bare))
			if err != nil {
				t.Fatal(err)
			}
			fields := strings.Split(string(first), ",")
			nonce := strings.TrimPrefix(fields[0], "r="+client)
			salt, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(fields[1], "s="))
			if err != nil {
				t.Fatal(err)
			}
			salted, err := pbkdf2.Key(h, "secret", salt, scramIterations, h().Size())
			if err != nil {
				t.Fatal(err)
			}
			mac := func(key []byte, text string) []byte {
				m := hmac.New(h, key)
				m.Write([]byte(text))
				return m.Sum(nil)
			}
			key := mac(salted, "Client Key")
			stored := h()
			stored.Write(key)
			last := "c=biws,r=" + tt.nonce(client, nonce)
			proof := make([]byte, len(key))
			subtle.XORBytes(proof, key, mac(stored.Sum(nil), bare+","+string(first)+","+last))
			_, done, err := x.step(fmt.Appendf(nil, "%s,p=%s", last, base64.StdEncoding.EncodeToString(proof)))
			if done != tt.taken || (err == nil) != tt.taken {
				t.Errorf("%s, %s: taken %t, %v, want %t", m, tt.what, done, err, tt.taken)
			}
		}
	}
}
