package cli

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// doctorOf runs the doctor, and returns what it has found by the check.
func doctorOf(t *testing.T, args ...string) (status int, found map[string]finding) {
	t.Helper()
	contexts(t)
	status, stdout, stderr := pawl(append([]string{"doctor", "-o", "json"}, args...)...)
	var all []finding
	if err := json.Unmarshal([]byte(stdout), &all); err != nil {
		t.Fatalf("pawl doctor %q: status %d, %v\n%s%s", args, status, err, stdout, stderr)
	}
	found = make(map[string]finding)
	for _, f := range all {
		found[f.Check] = f
	}
	if strings.Contains(stdout+stderr, "hunter2") {
		t.Errorf("pawl doctor %q shows the password:\n%s%s", args, stdout, stderr)
	}
	return status, found
}

// On a cluster that is well the doctor finds that.
func TestDoctor(t *testing.T) {
	s := serving(t, t.TempDir())
	if status, _, stderr := pawl("topic", "create", "words", "--partitions", "2", "--brokers", s.addr); status != 0 {
		t.Fatalf("create the topic: %d %s", status, stderr)
	}
	if status, _, stderr := pawl("topic", "create", "shop.words.changelog", "--partitions", "2", "--brokers", s.addr); status != 0 {
		t.Fatalf("create the changelog: %d %s", status, stderr)
	}
	state := filepath.Join(t.TempDir(), "not", "there", "yet")
	status, found := doctorOf(t, "--brokers", s.addr, "--application", "shop", "--topic", "words", "--topic", "absent", "--state-dir", state)
	if status != 1 {
		t.Errorf("status %d, want 1, since a topic is absent", status)
	}
	for check, want := range map[string]string{
		"broker " + s.addr:                 isOK,
		"version":                          isOK,
		"topic words":                      isWarning, // one replica
		"topic absent":                     isFailure,
		"topic shop.words.changelog":       isFailure, // which retention deletes
		"permissions of transactional IDs": isOK,
	} {
		if f := found[check]; f.Status != want {
			t.Errorf("%s: %q %q, want %s", check, f.Status, f.Detail, want)
		}
	}
	if f := found["disk of "+state]; !slices.Contains([]string{isOK, isWarning}, f.Status) || !strings.Contains(f.Detail, "can be written to") {
		t.Errorf("disk: %+v, want that it can be written to", f)
	}
	if _, err := os.Stat(state); !os.IsNotExist(err) {
		t.Errorf("the doctor made the directory: %v", err)
	}
	if f := found["topic shop.words.changelog"]; f.Mend != "pawl topic alter shop.words.changelog --set cleanup.policy=compact" {
		t.Errorf("the changelog is to be mended by %q", f.Mend)
	}
}

// A topic of dead letters that lets them go unseen is found, with the setting and
// what mends it.
func TestDoctorLetters(t *testing.T) {
	s := serving(t, t.TempDir())
	for name, sets := range map[string][]string{
		"shop.short.dlq":     {"retention.ms=3600000", "retention.bytes=1000000"},
		"shop.long.dlq":      {"retention.ms=2592000000"},
		"shop.compacted.dlq": {"cleanup.policy=compact"},
	} {
		args := []string{"topic", "create", name, "--partitions", "1", "--brokers", s.addr}
		for _, set := range sets {
			args = append(args, "--set", set)
		}
		if status, _, stderr := pawl(args...); status != 0 {
			t.Fatalf("create %s: %d %s", name, status, stderr)
		}
	}
	_, found := doctorOf(t, "--brokers", s.addr, "--application", "shop")
	for check, want := range map[string]finding{
		"dead letters in shop.short.dlq":     {Status: isWarning, Detail: "retention.ms is 3600000: dead letters vanish after 1h0m0s", Mend: "pawl topic alter shop.short.dlq --set retention.ms=2592000000 --set retention.bytes=-1"},
		"dead letters in shop.long.dlq":      {Status: isOK},
		"dead letters in shop.compacted.dlq": {Status: isFailure, Detail: "cleanup.policy is compact", Mend: "pawl topic alter shop.compacted.dlq --set cleanup.policy=delete"},
	} {
		if f := found[check]; f.Status != want.Status || !strings.HasPrefix(f.Detail, want.Detail) || f.Mend != want.Mend {
			t.Errorf("%s: %+v, want %+v", check, f, want)
		}
	}
}

// What an application consumes is known from what it has committed, and checked
// without being named.
func TestDoctorInputs(t *testing.T) {
	s := serving(t, t.TempDir())
	for _, name := range []string{"words", "others", "shopping"} {
		if status, _, stderr := pawl("topic", "create", name, "--partitions", "1", "--brokers", s.addr); status != 0 {
			t.Fatalf("create %s: %d %s", name, status, stderr)
		}
	}
	if _, found := doctorOf(t, "--brokers", s.addr, "--application", "shop"); found["inputs of shop"].Status != isSkipped {
		t.Errorf("nothing is committed, and the doctor says %+v of the inputs, want that it can't know them", found["inputs of shop"])
	}
	for name, group := range map[string]string{"words": "shop.mailer", "others": "shopping"} {
		if status, _, stderr := pawl("consume", name, "--group", group, "--until", "end", "--brokers", s.addr); status != 0 {
			t.Fatalf("consume %s: %d %s", name, status, stderr)
		}
	}
	_, found := doctorOf(t, "--brokers", s.addr, "--application", "shop")
	if f := found["inputs of shop"]; f.Status != isOK || !strings.HasPrefix(f.Detail, "words, by") {
		t.Errorf("inputs: %+v, want words alone", f)
	}
	if f := found["topic words"]; f.Status != isWarning { // one replica
		t.Errorf("the input: %+v, want that it has one replica", f)
	}
	for _, name := range []string{"topic others", "topic shopping"} {
		if f, ok := found[name]; ok {
			t.Errorf("%s, which is another application's: %+v", name, f)
		}
	}
}

// What is wrong with a connection is told apart, and what to do about it said.
func TestDoctorConnections(t *testing.T) {
	cert, key, _ := certificate(t)
	users := filepath.Join(t.TempDir(), "users")
	if err := os.WriteFile(users, []byte("ann:right\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	plain := serving(t, t.TempDir())
	secured := serving(t, t.TempDir(), "--users", users, "--tls-cert", cert, "--tls-key", key)
	t.Setenv("PAWL_SASL_PASSWORD", "hunter2")
	sasl := []string{"--sasl-mechanism=PLAIN", "--sasl-username=ann"}
	dead := closedPort(t)
	for _, tt := range []struct {
		name, address string
		args          []string
		detail, mend  string
	}{
		{"TLS on a plain port", plain.addr, []string{"--tls"}, "speak TLS, and this side is set to", "leave TLS away"},
		{"plain on a TLS port", secured.addr, nil, "speak TLS, and this side is not set to", "set --tls"},
		{"an unknown authority", secured.addr, []string{"--tls"}, "signed by nobody who is trusted here", "check --tls-ca"},
		{"no SASL", secured.addr, []string{"--tls-ca", cert}, "want SASL", "set --sasl-mechanism"},
		{"a wrong password", secured.addr, append(sasl, "--tls-ca", cert), "password is wrong", "check --sasl-username and the password"},
		{"SASL on a port that takes none", plain.addr, sasl, "SASL", "SASL"},
		{"nothing there", dead, nil, "nothing listens there", "check the address"},
	} {
		if !slices.Contains(tt.args, "--sasl-username=ann") {
			os.Unsetenv("PAWL_SASL_PASSWORD")
		} else {
			os.Setenv("PAWL_SASL_PASSWORD", "hunter2")
		}
		status, found := doctorOf(t, append(tt.args, "--brokers", tt.address)...)
		f := found["broker "+tt.address]
		if status != 1 || f.Status != isFailure || !strings.Contains(f.Detail, tt.detail) || !strings.Contains(f.Mend, tt.mend) {
			t.Errorf("%s: status %d, %+v, want %q and %q", tt.name, status, f, tt.detail, tt.mend)
		}
		if v := found["version"]; v.Status != isSkipped {
			t.Errorf("%s: the version is %+v, want that it was not checked", tt.name, v)
		}
	}
}

// A broker that calls itself by an address that is not reached from here is
// found by it.
func TestDoctorAdvertised(t *testing.T) {
	dead := closedPort(t)
	s := serving(t, t.TempDir(), "--advertise", dead)
	status, found := doctorOf(t, "--brokers", s.listen)
	if f := found["broker "+s.listen]; f.Status != isOK {
		t.Errorf("the broker is %+v, want that it is reached", f)
	}
	if f := found["advertised "+dead]; status != 1 || f.Status != isFailure || !strings.Contains(f.Mend, "advertised.listeners") {
		t.Errorf("status %d, the advertised address is %+v, want that it is not reached", status, f)
	}
}

// closedPort returns an address where nothing listens.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
