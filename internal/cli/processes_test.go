package cli

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/pawlstream/pawl/internal/admin"
)

// The token of an admin port comes from where the program's own comes from: its
// variable, or a file that a flag, a variable or the file of settings names.
func TestAdminTokenIsASetting(t *testing.T) {
	contexts(t)
	const token = "open sesame"
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	source := admin.Source{
		Ready: func() error { return nil }, Status: func() admin.Status { return admin.Status{Instance: "one"} }, Gatherer: prometheus.NewRegistry(), Logger: silent, Token: token,
		Application: &admin.Application{Topology: func() admin.Topology { return admin.Topology{} }},
	}
	server := &http.Server{Handler: admin.Handler(source)}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Close()
		<-served
	})
	t.Chdir(t.TempDir())
	if err := os.WriteFile("token", []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("settings.yaml", []byte("admin-token-file: token\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	ask := []string{"app", "describe", "--admin", l.Addr().String()}
	for name, tt := range map[string]struct {
		env  [2]string
		args []string
		ok   bool
	}{
		"nothing":                  {},
		"a variable":               {env: [2]string{"PAWL_ADMIN_TOKEN", token}, ok: true},
		"a variable for a file":    {env: [2]string{"PAWL_ADMIN_TOKEN_FILE", filepath.Join(dir, "token")}, ok: true},
		"a flag for a file":        {args: []string{"--admin-token-file", "token"}, ok: true},
		"a file of settings":       {args: []string{"--config", "settings.yaml"}, ok: true},
		"a flag over a variable":   {env: [2]string{"PAWL_ADMIN_TOKEN", "wrong"}, args: []string{"--admin-token-file", "token"}, ok: true},
		"a variable over the file": {env: [2]string{"PAWL_ADMIN_TOKEN", "wrong"}, args: []string{"--config", "settings.yaml"}},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.env[0] != "" {
				t.Setenv(tt.env[0], tt.env[1])
			}
			status, stdout, stderr := runAlone(append(ask, tt.args...)...)
			if tt.ok && (status != exitOK || !strings.Contains(stdout, "one")) || !tt.ok && (status != exitError || !strings.Contains(stderr, "the token is missing or wrong")) {
				t.Errorf("status %d, %q, %q", status, stdout, stderr)
			}
			if _, shown, _ := runAlone(append(append(ask, "--print-config"), tt.args...)...); strings.Contains(shown, token) || tt.ok && !strings.Contains(shown, "(hidden)") && !strings.Contains(shown, "admin-token-file") {
				t.Errorf("the settings are shown as %s", shown)
			}
		})
	}
}

// Every command that has settings prints them, whatever else its command line
// lacks, from all four places in their order.
func TestEveryCommandPrintsSettings(t *testing.T) {
	contexts(t)
	t.Chdir(t.TempDir())
	if err := os.WriteFile("pawl.yaml", []byte("brokers: [file:1]\nsasl-mechanism: plain\nsasl-username: file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PAWL_SASL_USERNAME", "variable")
	n := 0
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			walk(sub)
		}
		if c.Flags().Lookup("brokers") == nil || c.Name() == "add" || c.Hidden {
			return
		}
		n++
		args := append(strings.Fields(c.CommandPath())[1:], "--print-config", "--brokers", "flag:1")
		status, stdout, stderr := runAlone(args...)
		lines := strings.Join(strings.Fields(stdout), " ")
		for _, want := range []string{"brokers: [\"flag:1\"] # --brokers", "sasl-mechanism: PLAIN # pawl.yaml:2", "sasl-username: variable # PAWL_SASL_USERNAME"} {
			if want = strings.NewReplacer("[\"", "", "\"]", "").Replace(want); status != exitOK || stderr != "" || !strings.Contains(lines, want) {
				t.Errorf("pawl %v: status %d, %q, want %q in\n%s", args, status, stderr, want, stdout)
			}
		}
	}
	walk(newRoot())
	if n < 25 {
		t.Errorf("%d commands reach a cluster, want all of them", n)
	}
}

// What another machine tells of, whose clock is ahead, is not shown as to come.
func TestAgesAreNotNegative(t *testing.T) {
	now := time.Now()
	for ahead, want := range map[time.Duration]time.Duration{time.Hour: 0, 0: 0, -time.Minute: time.Minute} {
		if got := age(now, now.Add(ahead)); got != want {
			t.Errorf("age of what was at now%+v: %v, want %v", ahead, got, want)
		}
	}
}
