package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pawlstream/pawl/cluster"
)

// A client's secret that somebody has written into the URL of a token endpoint
// is refused by whatever reads it, and shown by nothing.
func TestEndpointShowsNoSecret(t *testing.T) {
	settings := func(c *cluster.Cluster) []Setting {
		return append([]Setting{BrokersSetting(c, "")}, ClusterSettings(c, new(TLSFiles))...)
	}
	for _, tt := range []struct{ url, want string }{
		{"https://id:s3cret@idp/token", `"https://id:xxxxx@idp/token": it holds a user: a client's ID and secret are the SASL user name and password`},
		{"https://:s3cret@idp/token", `"https://:xxxxx@idp/token": it holds a user: a client's ID and secret are the SASL user name and password`},
		{"https://id:s3/cret@idp/token", `"(hidden)@idp/token": want https://HOST/PATH`},
		{"https://id:s3cret%zz@idp/token", `"(hidden)@idp/token": want https://HOST/PATH`},
		{"id:s3cret@idp/token", `"(hidden)@idp/token": want https://HOST/PATH`},
		{"ftp://id:s3cret@idp/token", `"ftp://id:xxxxx@idp/token": want https://HOST/PATH`},
		{"idp", `"idp": want https://HOST/PATH`},
	} {
		var c cluster.Cluster
		_, err := Read(settings(&c), Input{Env: []string{"PAWL_SASL_TOKEN_URL=" + tt.url}})
		if want := "PAWL_SASL_TOKEN_URL " + tt.want; err == nil || err.Error() != want {
			t.Errorf("%s in a variable:\ngot  %v\nwant %s", tt.url, err, want)
		}
		file := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(file, []byte("contexts:\n  a:\n    brokers: b:1\n    sasl-token-url: "+tt.url+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		contexts, err := ReadContexts(file)
		if err != nil {
			t.Fatal(err)
		}
		err = contexts.CheckContext("a", settings(new(cluster.Cluster)))
		if want := file + ":4: context a: sasl-token-url " + tt.want; err == nil || err.Error() != want {
			t.Errorf("%s in a context:\ngot  %v\nwant %s", tt.url, err, want)
		}
		for _, f := range contexts.Fields("a", settings(new(cluster.Cluster))) {
			if strings.Contains(f.Value, "s3") {
				t.Errorf("%s in a context is shown as %s", tt.url, f.Value)
			}
		}
	}
	for _, url := range []string{"", "https://idp/token", "http://127.0.0.1:8080/a@b?c=d:e@f"} {
		var c cluster.Cluster
		if _, err := Read(settings(&c), Input{Args: []string{"--sasl-token-url=" + url}}); err != nil || c.SASL.TokenURL != url || redacted(url) != url {
			t.Errorf("%q is read as %q, %v, and shown as %q", url, c.SASL.TokenURL, err, redacted(url))
		}
	}
}

// What a check of the cluster quotes has no password of a URL in it, either.
func TestClusterErrorsShowNoSecret(t *testing.T) {
	var c cluster.Cluster
	var f TLSFiles
	settings := append([]Setting{BrokersSetting(&c, "")}, ClusterSettings(&c, &f)...)
	for i := range settings {
		if settings[i].Name == "sasl-token-url" {
			settings[i].Value = Text(&c.SASL.TokenURL, "URL") // as a program's own table may have it
		}
	}
	l, err := Read(settings, Input{Env: []string{"PAWL_BROKERS=b:1", "PAWL_SASL_MECHANISM=OAUTHBEARER", "PAWL_SASL_TOKEN_URL=https://id:s3cret@idp/token", "PAWL_SASL_USERNAME=id", "PAWL_SASL_PASSWORD=s3cret"}})
	if err != nil {
		t.Fatal(err)
	}
	err = l.LoadCluster(&c, f, "")
	if err == nil || !strings.Contains(err.Error(), `"https://id:xxxxx@idp/token"`) || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("got %v, want it to name the URL, and not its secret", err)
	}
}
