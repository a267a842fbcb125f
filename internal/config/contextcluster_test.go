package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pawlstream/pawl/cluster"
)

// A context's cluster is what the context says, and nothing that is set for
// another one: no password goes where it does not belong.
func TestClusterOfAContext(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	text := `contexts:
  prod:
    brokers: [a:1, b:2]
    sasl-mechanism: PLAIN
    sasl-username: ann
    sasl-password-env: PROD_PASSWORD
  bare:
    brokers: c:1
    sasl-mechanism: PLAIN
    sasl-username: bob
  plain:
    brokers: d:1
  nowhere:
    tls: true
  slip:
    broker: e:1
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := ReadContexts(file)
	if err != nil {
		t.Fatal(err)
	}
	env := []string{"PROD_PASSWORD=hunter2", "PAWL_SASL_PASSWORD=own", "PAWL_TLS=true", "PAWL_BROKERS=x:1"}
	for _, tt := range []struct{ name, brokers, password string }{{"prod", "a:1 b:2", "hunter2"}, {"plain", "d:1", ""}} {
		got, err := c.Cluster("to", tt.name, env)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if brokers := strings.Join(got.Brokers, " "); brokers != tt.brokers || string(got.SASL.Password) != tt.password || got.TLS != nil {
			t.Errorf("%s: brokers %s, password %q, TLS %v; want %s, %q, none", tt.name, brokers, string(got.SASL.Password), got.TLS, tt.brokers, tt.password)
		}
		if tt.password == "" && got.SASL != (cluster.SASL{}) {
			t.Errorf("%s: it logs in as %q, want that it does not", tt.name, got.SASL.Username)
		}
	}
	for _, tt := range []struct {
		name string
		env  []string
		want string
	}{
		{"prdo", env, `--to "prdo": FILE has no such context: did you mean prod?`},
		{"", env, `--to "": want the name of a context`},
		{"prod", nil, "FILE:6: context prod: sasl-password-env: the variable PROD_PASSWORD is not set"},
		{"bare", env, "FILE: context bare: SASL PLAIN needs a password"},
		{"nowhere", env, "FILE: context nowhere names no brokers"},
		{"slip", env, "FILE:16: context slip: unknown key broker: did you mean brokers?"},
	} {
		_, err := c.Cluster("to", tt.name, tt.env)
		if err == nil || !strings.HasPrefix(strings.ReplaceAll(err.Error(), file, "FILE"), tt.want) {
			t.Errorf("context %q: %v, want %s", tt.name, err, tt.want)
		}
	}
}
