package cluster_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/pawlstream/pawl/cluster"
)

func TestValidate(t *testing.T) {
	sasl := func(mechanism, user, password string) cluster.Cluster {
		return cluster.Cluster{Brokers: []string{"a:9092"}, SASL: cluster.SASL{Mechanism: mechanism, Username: user, Password: cluster.Secret(password)}}
	}
	bearer := func(s cluster.SASL) cluster.Cluster {
		s.Mechanism = cluster.OAuthBearer
		return cluster.Cluster{Brokers: []string{"a:9092"}, SASL: s}
	}
	brokers := func(b ...string) cluster.Cluster { return cluster.Cluster{Brokers: b} }
	for _, tt := range []struct {
		name string
		c    cluster.Cluster
		want []string // the lines of the error
	}{
		{"one broker", brokers("a:9092"), nil},
		{"several", brokers("a:9092", "10.0.0.1:1", "[::1]:65535"), nil},
		{"plain", sasl(cluster.Plain, "u", "p"), nil},
		{"scram", sasl(cluster.ScramSHA256, "u", "p"), nil},
		{"scram 512", sasl(cluster.ScramSHA512, "u", "p"), nil},
		{"nothing", cluster.Cluster{}, []string{"no brokers are named"}},
		{"no port", brokers("a"), []string{`broker "a": want HOST:PORT`}},
		{"no host", brokers(":9092"), []string{`broker ":9092": want HOST:PORT`}},
		{"empty", brokers(""), []string{`broker "": want HOST:PORT`}},
		{"empty port", brokers("a:"), []string{`broker "a:": want HOST:PORT`}},
		{"port 0", brokers("a:0"), []string{`broker "a:0": want HOST:PORT`}},
		{"port too large", brokers("a:65536"), []string{`broker "a:65536": want HOST:PORT`}},
		{"port by name", brokers("a:kafka"), []string{`broker "a:kafka": want HOST:PORT`}},
		{"two in one", brokers("a:9092,b:9092"), []string{`broker "a:9092,b:9092": want HOST:PORT`}},
		{"a space", brokers("a:9092", " b:9092"), []string{`broker " b:9092": want HOST:PORT`}},
		{"a line break", brokers("a:9092\n"), []string{`broker "a:9092\n": want HOST:PORT`}},
		{"a URL", brokers("kafka://a:9092"), []string{`broker "kafka://a:9092": want HOST:PORT`}},
		{"bare IPv6", brokers("::1"), []string{`broker "::1": want HOST:PORT`}},
		{"unknown mechanism", sasl("plain", "u", "p"),
			[]string{`SASL mechanism "plain": want PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER`}},
		{"no mechanism", sasl("", "u", "hunter2"), []string{"a SASL user name or password is set, and no mechanism"}},
		{"no user, no password", sasl(cluster.Plain, "", ""),
			[]string{"SASL PLAIN needs a user name", "SASL PLAIN needs a password"}},
		{"a password out of a file", sasl(cluster.ScramSHA256, "u", "hunter2\n"),
			[]string{"the SASL password holds a line break (read from a file that ends with one?)"}},
		{"token", bearer(cluster.SASL{Token: "eyJ.x"}), nil},
		{"token file", bearer(cluster.SASL{TokenFile: "/run/token"}), nil},
		{"client credentials", bearer(cluster.SASL{TokenURL: "https://idp/token", Username: "id", Password: "hunter2", Scope: "kafka"}), nil},
		{"client credentials in the clear at home", bearer(cluster.SASL{TokenURL: "http://127.0.0.1:8080/token", Username: "id", Password: "hunter2"}), nil},
		{"client credentials in the clear", bearer(cluster.SASL{TokenURL: "http://idp/token", Username: "id", Password: "hunter2"}),
			[]string{"the URL of the token endpoint: want https, since the network in between would see the secret"}},
		{"a URL with a password", bearer(cluster.SASL{TokenURL: "https://id:hunter2@idp/token", Username: "id", Password: "hunter2"}),
			[]string{"the URL of the token endpoint holds a user: a client's ID and secret are the user name and the password"}},
		{"no URL", bearer(cluster.SASL{TokenURL: "hunter2"}),
			[]string{"the URL of the token endpoint: want https://HOST/PATH", "the token endpoint needs the client's ID as user name", "the token endpoint needs the client's secret as password"}},
		{"no token", bearer(cluster.SASL{}), []string{"SASL OAUTHBEARER needs a token, a file of one, or the URL of a token endpoint"}},
		{"two tokens", bearer(cluster.SASL{Token: "hunter2", TokenFile: "x"}), []string{"SASL OAUTHBEARER takes its token from one place, and 2 are set"}},
		{"a token out of a file", bearer(cluster.SASL{Token: "hunter2\n"}), []string{"the SASL token holds a space, a line break or what is no ASCII"}},
		{"a token for a password's mechanism", cluster.Cluster{Brokers: []string{"a:1"}, SASL: cluster.SASL{Mechanism: cluster.Plain, Username: "u", Password: "hunter2", Token: "hunter2"}},
			[]string{"a SASL token is set, and the mechanism is PLAIN: tokens are for OAUTHBEARER"}},
		{"a password for tokens", bearer(cluster.SASL{Token: "x", Username: "u"}),
			[]string{"a user name, a password or a scope is set, which SASL OAUTHBEARER gives to a token endpoint, and none is named"}},
		{"everything at once",
			cluster.Cluster{Brokers: []string{"a", "b:1", "c"}, SASL: cluster.SASL{Mechanism: "GSSAPI", Password: "hunter2"}},
			[]string{`broker "a": want HOST:PORT`, `broker "c": want HOST:PORT`, `SASL mechanism "GSSAPI": want PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.c.Validate()
			if got, want := fmt.Sprint(err), strings.Join(tt.want, "\n"); tt.want != nil && got != want {
				t.Errorf("error:\n%s\nwant:\n%s", got, want)
			}
			if tt.want == nil && err != nil {
				t.Errorf("error %v, want none", err)
			}
			if strings.Contains(fmt.Sprint(err), "hunter2") {
				t.Errorf("the password is in the error %v", err)
			}
		})
	}
}

// config is what the configurations that hold a Cluster look like.
type config struct {
	Name    string
	Cluster cluster.Cluster
	Second  *cluster.Cluster
}

// However a cluster, or what holds one, is printed, logged or marshalled, its
// password isn't there.
func TestNoSecrets(t *testing.T) {
	const secret = "hunter2"
	c := cluster.Cluster{
		Brokers: []string{"a:9092", "b:9092"},
		TLS:     &tls.Config{ServerName: "kafka"},
		SASL:    cluster.SASL{Mechanism: cluster.ScramSHA512, Username: "alice", Password: secret},
		Dial: func(context.Context, string, string) (net.Conn, error) {
			return nil, errors.New("not called")
		},
	}
	type holder struct {
		Secret cluster.Secret
		List   []cluster.Secret
	}
	bearer := cluster.SASL{Mechanism: cluster.OAuthBearer, Token: secret}
	held := holder{secret, []cluster.Secret{secret}}
	for _, v := range []any{c.SASL.Password, &c.SASL.Password, held, &held, bearer, c, &c, c.SASL, &c.SASL, config{"x", c, &c}, &config{"x", c, &c}, []cluster.Cluster{c}, map[string]cluster.SASL{"k": c.SASL}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d", "%10.3v"} {
			if got := fmt.Sprintf(verb, v); holds(got, secret) {
				t.Errorf("%s of %T: %s", verb, v, got)
			}
		}
		if got := fmt.Errorf("connect: %v", v).Error(); holds(got, secret) {
			t.Errorf("error with %T: %s", v, got)
		}
		got, err := json.Marshal(v)
		if err != nil {
			t.Errorf("JSON of %T: %v", v, err)
		}
		if holds(string(got), secret) {
			t.Errorf("JSON of %T: %s", v, got)
		}
		for name, handler := range map[string]func(*bytes.Buffer) slog.Handler{
			"text": func(b *bytes.Buffer) slog.Handler { return slog.NewTextHandler(b, nil) },
			"json": func(b *bytes.Buffer) slog.Handler { return slog.NewJSONHandler(b, nil) },
		} {
			var b bytes.Buffer
			slog.New(handler(&b)).Info("connect", "to", v)
			if holds(b.String(), secret) {
				t.Errorf("%s log of %T: %s", name, v, &b)
			}
			if strings.Contains(b.String(), "!ERROR") {
				t.Errorf("%s log of %T can't show it: %s", name, v, &b)
			}
		}
	}
}

// holds says whether s holds the secret, as text or in hexadecimal.
func holds(s, secret string) bool {
	return strings.Contains(s, secret) || strings.Contains(s, fmt.Sprintf("%x", secret))
}

func TestString(t *testing.T) {
	for _, tt := range []struct {
		c    cluster.Cluster
		want string
	}{
		{cluster.Cluster{}, ""},
		{cluster.Cluster{Brokers: []string{"a:1", "b:2"}}, "a:1,b:2"},
		{cluster.Cluster{Brokers: []string{"a:1"}, TLS: new(tls.Config)}, "a:1 with TLS"},
		{cluster.Cluster{Brokers: []string{"a:1"}, TLS: new(tls.Config), SASL: cluster.SASL{Mechanism: cluster.Plain, Username: "u", Password: "p"}},
			"a:1 with TLS as u by SASL PLAIN"},
	} {
		if got := tt.c.String(); got != tt.want {
			t.Errorf("String() = %q, want %q", got, tt.want)
		}
		if got := tt.c.LogValue().String(); got != tt.want {
			t.Errorf("LogValue() = %q, want %q", got, tt.want)
		}
	}
	if got, want := (cluster.SASL{}).String(), "none"; got != want {
		t.Errorf("String() without SASL = %q, want %q", got, want)
	}
}

func ExampleCluster() {
	c := cluster.Cluster{
		Brokers: []string{"kafka-1:9093", "kafka-2:9093"},
		TLS:     &tls.Config{MinVersion: tls.VersionTLS12},
		SASL:    cluster.SASL{Mechanism: cluster.ScramSHA512, Username: "orders", Password: "correct horse"},
	}
	fmt.Println(c.Validate())
	fmt.Println(c)
	// Output:
	// <nil>
	// kafka-1:9093,kafka-2:9093 with TLS as orders by SASL SCRAM-SHA-512
}

func ExampleCluster_Validate() {
	c := cluster.Cluster{
		Brokers: []string{"kafka-1"},
		SASL:    cluster.SASL{Mechanism: cluster.Plain, Username: "orders"},
	}
	fmt.Println(c.Validate())
	// Output:
	// broker "kafka-1": want HOST:PORT
	// SASL PLAIN needs a password
}
