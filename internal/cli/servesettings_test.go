package cli

import (
	"net/http"
	"os"
	"strings"
	"testing"
)

// The broker takes its settings as every program does: from flags, variables, a
// file and defaults, in this order, and says from where.
func TestServeSettings(t *testing.T) {
	t.Chdir(t.TempDir())
	const file = "dir: data\nlisten: 127.0.0.1:1\nmemory: 100MiB\nfree-space: 1MiB\nset: [\"log.cleanup.policy=compact\", \"log.retention.ms=1000\"]\nbrokers: [others:1]\n"
	if err := os.WriteFile("pawl.yaml", []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PAWL_LISTEN", "127.0.0.1:2")
	t.Setenv("PAWL_MEMORY", "200MiB")
	t.Setenv("PAWL_ADMIN_TOKEN", "open sesame")
	status, stdout, stderr := pawl("serve", "--print-config", "--listen", "127.0.0.1:3", "--set", "log.cleanup.policy=compact,delete", "--set", "log.retention.ms=5")
	got := strings.Join(strings.Fields(stdout), " ")
	for _, want := range []string{
		"dir: data # pawl.yaml:1", "listen: 127.0.0.1:3 # --listen", "memory: 200MiB # PAWL_MEMORY", "free-space: 1MiB # pawl.yaml:4", "admin: 127.0.0.1:0 # default", "(hidden)",
	} {
		if status != exitOK || stderr != "" || !strings.Contains(got, want) {
			t.Errorf("status %d, %q, want %s in\n%s", status, stderr, want, stdout)
		}
	}
	if strings.Contains(stdout, "sesame") {
		t.Errorf("a secret is shown:\n%s", stdout)
	}
	for name, want := range map[string]string{
		"memory: 5":     `pawl.yaml:1: memory "5": want a unit with it`,
		"memry: 5MiB":   "pawl.yaml:1: unknown key memry: did you mean memory?",
		"listen: there": `PAWL_LISTEN`, // which wins
		"admin: :80":    "pawl.yaml:1: admin :80: others can reach this address",
		"set: nothing":  `pawl.yaml:1: set "nothing": want NAME=VALUE`,
	} {
		if err := os.WriteFile("pawl.yaml", []byte(name+"\ndir: data\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PAWL_MEMORY", "")
		t.Setenv("PAWL_LISTEN", "here")
		t.Setenv("PAWL_ADMIN_TOKEN", "")
		if strings.HasPrefix(name, "admin") {
			t.Setenv("PAWL_LISTEN", "127.0.0.1:0")
		}
		if status, _, stderr := pawl("serve"); status != exitUsage || !strings.Contains(stderr, want) {
			t.Errorf("%s: status %d, %q, want %q", name, status, stderr, want)
		}
	}
}

// Who asks the admin port of a broker that has a token must know it.
func TestServeAdminToken(t *testing.T) {
	t.Setenv("PAWL_ADMIN_TOKEN", "open sesame")
	s := serving(t, t.TempDir(), "--set", "log.cleanup.policy=compact,delete")
	for path, want := range map[string]int{"/v1/broker": 401, "/metrics": 401, "/healthz": 200} {
		if got, body := s.get(path); got != want {
			t.Errorf("GET %s without the token: %d %s, want %d", path, got, body, want)
		}
	}
	req, err := http.NewRequest(http.MethodGet, s.admin+"/v1/broker", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer open sesame")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Errorf("GET /v1/broker with the token: %d", resp.StatusCode)
	}
}
