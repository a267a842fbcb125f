package broker

import (
	"bytes"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"hash"
	"strings"

	"github.com/pawlstream/pawl/cluster"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// authenticator knows the users. Of a password it keeps what each mechanism
// needs to check it.
type authenticator struct {
	plain map[string][]byte // a salted hash
	salt  []byte
	scram map[string]map[string]credential // mechanism -> user
}

// credential is what SCRAM keeps of a password.
type credential struct {
	salt              []byte
	storedKey, server []byte
}

// scramIterations is how often a password is hashed, the least that the
// standard allows being 4096.
const scramIterations = 4096

func newAuthenticator(users []User) *authenticator {
	a := &authenticator{plain: make(map[string][]byte), salt: make([]byte, 32), scram: make(map[string]map[string]credential)}
	_, _ = rand.Read(a.salt) // it never fails
	for _, u := range users {
		a.plain[u.Name] = a.hash(u.Password)
		for _, m := range []string{cluster.ScramSHA256, cluster.ScramSHA512} {
			if a.scram[m] == nil {
				a.scram[m] = make(map[string]credential)
			}
			a.scram[m][u.Name] = newCredential(scramHash(m), u.Password)
		}
	}
	return a
}

func (a *authenticator) required() bool { return len(a.plain) > 0 }

func (a *authenticator) hash(password string) []byte {
	m := hmac.New(sha256.New, a.salt)
	m.Write([]byte(password))
	return m.Sum(nil)
}

func scramHash(mechanism string) func() hash.Hash {
	if mechanism == cluster.ScramSHA512 {
		return sha512.New
	}
	return sha256.New
}

func newCredential(h func() hash.Hash, password string) credential {
	c := credential{salt: make([]byte, 16)}
	_, _ = rand.Read(c.salt) // it never fails
	salted, err := pbkdf2.Key(h, password, c.salt, scramIterations, h().Size())
	if err != nil {
		// It can fail for a key that is too short alone, and this one isn't.
		panic(fmt.Sprintf("scram: %v", err))
	}
	client := sign(h, salted, "Client Key")
	sum := h()
	sum.Write(client)
	c.storedKey, c.server = sum.Sum(nil), sign(h, salted, "Server Key")
	return c
}

func sign(h func() hash.Hash, key []byte, text string) []byte {
	m := hmac.New(h, key)
	m.Write([]byte(text))
	return m.Sum(nil)
}

// login is how far a connection has said who it is.
type login struct {
	mechanism string
	scram     *scramExchange
	done      bool
}

func (b *Broker) saslHandshake(c *connection, req *kmsg.SASLHandshakeRequest) answer {
	resp := req.ResponseKind().(*kmsg.SASLHandshakeResponse)
	resp.SupportedMechanisms = mechanisms
	switch {
	case c.inside || !b.sasl.required() || c.login.mechanism != "":
		resp.ErrorCode = kerr.IllegalSaslState.Code
	case !knownMechanism(req.Mechanism) || req.Version == 0:
		// In version 0 what follows is not framed as requests are.
		resp.ErrorCode = kerr.UnsupportedSaslMechanism.Code
	default:
		c.login.mechanism = req.Mechanism
		if req.Mechanism != cluster.Plain {
			c.login.scram = &scramExchange{hash: scramHash(req.Mechanism), users: b.sasl.scram[req.Mechanism]}
		}
	}
	return answer{resp: resp}
}

func (b *Broker) saslAuthenticate(c *connection, req *kmsg.SASLAuthenticateRequest) answer {
	resp := req.ResponseKind().(*kmsg.SASLAuthenticateResponse)
	resp.SASLAuthBytes = []byte{}
	if c.login.mechanism == "" || c.login.done {
		resp.ErrorCode = kerr.IllegalSaslState.Code
		return answer{resp: resp}
	}
	var reply []byte
	var done bool
	var err error
	if c.login.scram == nil {
		done, err = true, b.sasl.checkPlain(req.SASLAuthBytes)
	} else {
		reply, done, err = c.login.scram.step(req.SASLAuthBytes)
	}
	if err != nil {
		b.config.Logger.Warn("a client's authentication failed", "from", c.conn.RemoteAddr().String(), "mechanism", c.login.mechanism)
		resp.ErrorCode = kerr.SaslAuthenticationFailed.Code
		resp.ErrorMessage = kmsg.StringPtr(errCredentials.Error())
		return answer{resp: resp, last: true}
	}
	c.login.done = done
	if reply != nil {
		resp.SASLAuthBytes = reply
	}
	return answer{resp: resp}
}

var errCredentials = errors.New("the user name or the password is wrong")

// checkPlain checks "identity NUL user NUL password".
func (a *authenticator) checkPlain(msg []byte) error {
	parts := bytes.Split(msg, []byte{0})
	if len(parts) != 3 {
		return errCredentials
	}
	user, password := string(parts[1]), string(parts[2])
	want, ok := a.plain[user]
	if !ok {
		want = make([]byte, sha256.Size) // takes as long as a user that there is
	}
	if subtle.ConstantTimeCompare(a.hash(password), want) != 1 || !ok {
		return errCredentials
	}
	if id := string(parts[0]); id != "" && id != user {
		return errCredentials
	}
	return nil
}

// scramExchange is the broker's side of SCRAM, RFC 5802: two messages of the
// client's, each answered.
type scramExchange struct {
	hash      func() hash.Hash
	users     map[string]credential
	user      credential
	known     bool
	bare      string // the client's first message, without its header
	header    string
	first     string // the answer to it
	nonce     string // the client's, and behind it the broker's
	own       int    // bytes of it that are the client's
	firstSeen bool
}

func (s *scramExchange) step(msg []byte) (reply []byte, done bool, err error) {
	if len(msg) > 4096 {
		return nil, false, errCredentials
	}
	if !s.firstSeen {
		s.firstSeen = true
		reply, err = s.begin(string(msg))
		return reply, false, err
	}
	reply, err = s.finish(string(msg))
	return reply, err == nil, err
}

// begin reads "n,,n=USER,r=NONCE".
func (s *scramExchange) begin(msg string) ([]byte, error) {
	parts := strings.SplitN(msg, ",", 3)
	if len(parts) != 3 || parts[0] != "n" && parts[0] != "y" {
		return nil, errCredentials
	}
	s.header, s.bare = parts[0]+","+parts[1]+",", parts[2]
	fields := strings.Split(s.bare, ",")
	if len(fields) < 2 || !strings.HasPrefix(fields[0], "n=") || !strings.HasPrefix(fields[1], "r=") || len(fields[1]) < 3 {
		return nil, errCredentials
	}
	name := strings.NewReplacer("=2C", ",", "=3D", "=").Replace(fields[0][2:])
	if s.user, s.known = s.users[name]; !s.known {
		// Go on as if there were such a user, so as not to tell who there is.
		s.user = credential{salt: make([]byte, 16), storedKey: make([]byte, s.hash().Size()), server: make([]byte, s.hash().Size())}
		_, _ = rand.Read(s.user.salt)
	}
	own := randomID()
	s.own = len(fields[1]) - 2
	s.nonce = fields[1][2:] + base64.RawURLEncoding.EncodeToString(own[:])
	s.first = fmt.Sprintf("r=%s,s=%s,i=%d", s.nonce, base64.StdEncoding.EncodeToString(s.user.salt), scramIterations)
	return []byte(s.first), nil
}

// isNonce says whether a field is the nonce. librdkafka puts its own part before
// it once more, which Kafka takes too, and which proves no less: the whole nonce
// is there, and what is signed has it beside this.
func (s *scramExchange) isNonce(field string) bool {
	return field == "r="+s.nonce || field == "r="+s.nonce[:s.own]+s.nonce
}

// finish reads "c=HEADER,r=NONCE,p=PROOF".
func (s *scramExchange) finish(msg string) ([]byte, error) {
	at := strings.LastIndex(msg, ",p=")
	if at < 0 {
		return nil, errCredentials
	}
	without := msg[:at]
	proof, err := base64.StdEncoding.DecodeString(msg[at+3:])
	fields := strings.Split(without, ",")
	if err != nil || len(fields) < 2 || len(proof) != s.hash().Size() ||
		fields[0] != "c="+base64.StdEncoding.EncodeToString([]byte(s.header)) || !s.isNonce(fields[1]) {
		return nil, errCredentials
	}
	text := s.bare + "," + s.first + "," + without
	signature := sign(s.hash, s.user.storedKey, text)
	key := make([]byte, len(proof))
	subtle.XORBytes(key, proof, signature)
	sum := s.hash()
	sum.Write(key)
	if subtle.ConstantTimeCompare(sum.Sum(nil), s.user.storedKey) != 1 || !s.known {
		return nil, errCredentials
	}
	return []byte("v=" + base64.StdEncoding.EncodeToString(sign(s.hash, s.user.server, text))), nil
}
