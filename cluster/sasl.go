package cluster

import (
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strings"
)

// The SASL mechanisms.
const (
	Plain       = "PLAIN"
	ScramSHA256 = "SCRAM-SHA-256"
	ScramSHA512 = "SCRAM-SHA-512"
	OAuthBearer = "OAUTHBEARER"
)

// SASL names who connects. Its secrets appear in no log, no error and no JSON.
// Package fmt prints what is in an unexported field without asking it, so a
// struct that keeps a SASL or a Cluster in one must have a String method of its
// own.
//
// Plain and the Scrams want a user name and a password. OAuthBearer wants a
// token: one that is given, the content of a file, which is read anew for each
// connection, or one that a token endpoint gives for a client's ID and secret,
// which are Username and Password then.
type SASL struct {
	Mechanism string // Plain, ScramSHA256, ScramSHA512 or OAuthBearer; empty for none
	Username  string
	Password  Secret `json:"-"`

	Token     Secret `json:"-"`
	TokenFile string
	TokenURL  string // of OAuth 2.0, by the client credentials grant
	Scope     string // that is asked for there; may be empty
}

// validate reports everything that is wrong.
func (s SASL) validate() (errs []error) {
	bad := func(field, format string, args ...any) {
		errs = append(errs, fieldError{"SASL." + field, fmt.Errorf(format, args...)})
	}
	tokens := s.Token != "" || s.TokenFile != "" || s.TokenURL != "" || s.Scope != ""
	switch s.Mechanism {
	case "":
		if s.Username != "" || s.Password != "" {
			bad("Mechanism", "a SASL user name or password is set, and no mechanism")
		}
		if tokens {
			bad("Mechanism", "a SASL token is set, and no mechanism")
		}
	case Plain, ScramSHA256, ScramSHA512:
		if s.Username == "" {
			bad("Username", "SASL %s needs a user name", s.Mechanism)
		}
		if s.Password == "" {
			bad("Password", "SASL %s needs a password", s.Mechanism)
		}
		if tokens {
			bad("Mechanism", "a SASL token is set, and the mechanism is %s: tokens are for %s", s.Mechanism, OAuthBearer)
		}
	case OAuthBearer:
		errs = append(errs, s.validateToken()...)
	default:
		bad("Mechanism", "SASL mechanism %q: want %s, %s, %s or %s", s.Mechanism, Plain, ScramSHA256, ScramSHA512, OAuthBearer)
	}
	if strings.ContainsAny(string(s.Password), "\r\n") {
		bad("Password", "the SASL password holds a line break (read from a file that ends with one?)")
	}
	return errs
}

// validateToken reports what is wrong with where a token comes from.
func (s SASL) validateToken() (errs []error) {
	bad := func(field, format string, args ...any) {
		errs = append(errs, fieldError{"SASL." + field, fmt.Errorf(format, args...)})
	}
	sources := 0
	for _, set := range []bool{s.Token != "", s.TokenFile != "", s.TokenURL != ""} {
		if set {
			sources++
		}
	}
	switch {
	case sources == 0:
		bad("Token", "SASL %s needs a token, a file of one, or the URL of a token endpoint", OAuthBearer)
	case sources > 1:
		bad("Token", "SASL %s takes its token from one place, and %d are set", OAuthBearer, sources)
	}
	if strings.ContainsFunc(string(s.Token), func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		bad("Token", "the SASL token holds a space, a line break or what is no ASCII")
	}
	if s.TokenURL == "" {
		if s.Username != "" || s.Password != "" || s.Scope != "" {
			bad("TokenURL", "a user name, a password or a scope is set, which SASL %s gives to a token endpoint, and none is named", OAuthBearer)
		}
		return errs
	}
	u, err := url.Parse(s.TokenURL)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		bad("TokenURL", "the URL of the token endpoint: want https://HOST/PATH")
	case u.User != nil:
		bad("TokenURL", "the URL of the token endpoint holds a user: a client's ID and secret are the user name and the password")
	case u.Scheme == "http" && !loopback(u.Hostname()):
		bad("TokenURL", "the URL of the token endpoint: want https, since the network in between would see the secret")
	}
	if s.Username == "" {
		bad("Username", "the token endpoint needs the client's ID as user name")
	}
	if s.Password == "" {
		bad("Password", "the token endpoint needs the client's secret as password")
	}
	return errs
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// String hides the secrets.
func (s SASL) String() string {
	switch {
	case s.Mechanism == "":
		return "none"
	case s.Username == "":
		return s.Mechanism
	}
	return s.Mechanism + " user " + s.Username
}

// GoString hides the secrets.
func (s SASL) GoString() string { return "cluster.SASL{" + s.String() + "}" }

// LogValue hides the secrets.
func (s SASL) LogValue() slog.Value { return slog.StringValue(s.String()) }

// Secret is a text that is shown nowhere: however it is printed, logged or
// marshalled, it is not there. Converted to a string it is the text.
type Secret string

// hidden stands for a secret.
const hidden = "(hidden)"

// shown is what is shown of the secret.
func (s Secret) shown() string {
	if s == "" {
		return ""
	}
	return hidden
}

// String hides the text.
func (s Secret) String() string { return s.shown() }

// Format hides the text, whatever the verb.
func (s Secret) Format(f fmt.State, _ rune) {
	if _, err := f.Write([]byte(s.shown())); err != nil {
		return // the printer knows of it as well
	}
}

// LogValue hides the text.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.shown()) }

// MarshalJSON hides the text.
func (s Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + s.shown() + `"`), nil }

// MarshalText hides the text.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.shown()), nil }
