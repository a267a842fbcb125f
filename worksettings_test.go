package pawl

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pawlstream/pawl/messaging"
)

// Every field of a worker's configuration is a setting, but for those that the
// program itself fills in and those that are for programs of other forms.
func TestWorkSettingsAreWhole(t *testing.T) {
	var s workSettings
	if err := s.load(Options{Name: "x", Env: []string{"HOME=/home/x"}}); err != nil {
		t.Fatal(err)
	}
	ours := []string{"Cluster", "Topic", "Logger", "Registerer", "TracerProvider", "DeadLetters", "Breaker", "Retry"} // filled by the program, or looked at below
	zero := []string{"Consumer", "Instance", "Start", "RateLimit", "HandlerTimeout"}                                  // zero is their default
	batch := []string{"BatchMax"}                                                                                     // for a handler of batches
	v := reflect.ValueOf(s.Config)
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		if v.Field(i).IsZero() && !slices.Contains(slices.Concat(ours, zero, batch), name) {
			t.Errorf("Config.%s has no setting with a default", name)
		}
	}
	if got, want := s.Retry.Tiers, []time.Duration{10 * time.Second, time.Minute, 10 * time.Minute}; !slices.Equal(got, want) {
		t.Errorf("delays are %v, want %v", got, want)
	}
	names := make(map[string]bool)
	for _, setting := range s.table() {
		if names[setting.Name] {
			t.Errorf("two settings are named %s", setting.Name)
		}
		names[setting.Name] = true
		if setting.Help == "" || strings.HasSuffix(setting.Help, ".") {
			t.Errorf("help of --%s is %q, want a sentence without its full stop", setting.Name, setting.Help)
		}
	}
	s = workSettings{}
	if err := s.load(Options{Name: "x", Args: []string{"--retry-delays=none"}, Env: []string{"HOME=/home/x"}}); err != nil || s.Retry.Tiers == nil || len(s.Retry.Tiers) != 0 {
		t.Errorf("--retry-delays=none: %v, %v, want no delays", s.Retry.Tiers, err)
	}
}

// Dead letters on another cluster are said by settings of their own.
func TestLettersCluster(t *testing.T) {
	load := func(args, env []string) (workSettings, error) {
		var s workSettings
		err := s.load(Options{Name: "x", Args: args, Env: append(env, "HOME=/home/x")})
		return s, err
	}
	s, err := load([]string{"--brokers=a:1", "--dead-letters-brokers=b:1,b:2"}, []string{"PAWL_DEAD_LETTERS_SASL_MECHANISM=PLAIN", "PAWL_DEAD_LETTERS_SASL_USERNAME=u", "PAWL_DEAD_LETTERS_SASL_PASSWORD=p"})
	if err != nil {
		t.Fatal(err)
	}
	c := s.DeadLetters.Cluster
	if c == nil || !slices.Equal(c.Brokers, []string{"b:1", "b:2"}) || c.SASL.Username != "u" || c.SASL.Password != "p" || !slices.Equal(s.Cluster.Brokers, []string{"a:1"}) || s.Cluster.SASL.Username != "" {
		t.Errorf("dead letters go to %+v, and messages come from %+v", c, s.Cluster)
	}
	if s, err = load([]string{"--brokers=a:1"}, nil); err != nil || s.DeadLetters.Cluster != nil {
		t.Errorf("with nothing said: %v, %v; want the cluster of the topic", s.DeadLetters.Cluster, err)
	}
	for args, want := range map[string]string{
		"--dead-letters-tls":       "TLS or SASL is set for dead letters on another cluster, and no brokers: set --dead-letters-brokers",
		"--dead-letters-brokers=b": `--dead-letters-brokers "b": broker "b": want HOST:PORT`,
		"--dead-letters-brokers=b:1 --dead-letters-tls-ca=/nowhere":            "--dead-letters-tls-ca: open /nowhere: no such file or directory",
		"--dead-letters-brokers=b:1 --dead-letters-tls-cert=c":                 "--dead-letters-tls-cert goes together with dead-letters-tls-key, which is not set",
		"--dead-letters-brokers=b:1 --dead-letters-tls-key=c":                  "--dead-letters-tls-key goes together with dead-letters-tls-cert, which is not set",
		"--dead-letters-brokers=b:1 --dead-letters-sasl-username=u":            "a SASL user name or password is set, and no mechanism: set --dead-letters-sasl-mechanism",
		"--dead-letters-brokers=b:1 --dead-letters-sasl-mechanism=plain":       "SASL PLAIN needs a user name: set --dead-letters-sasl-username\nSASL PLAIN needs a password: set PAWL_DEAD_LETTERS_SASL_PASSWORD or --dead-letters-sasl-password-file",
		"--dead-letters-brokers=b:1 --sasl-username=u --dead-letters-tls-ca=/": "a SASL user name or password is set, and no mechanism: set --sasl-mechanism\n--dead-letters-tls-ca: read /: is a directory",
	} {
		all := append([]string{"--brokers=a:1"}, strings.Fields(args)...)
		if _, err := load(all, nil); err == nil || err.Error() != want {
			t.Errorf("%v:\ngot  %v\nwant %s", all, err, want)
		}
	}
}

// C27: a duration carries its unit, by flag, by variable and by file. What has
// none, or is absurd, is refused by whoever reads it, or by messaging.New.
func TestDurationsCarryUnits(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pawl.yaml")
	for _, tt := range []struct {
		text string
		want time.Duration // 0: refused
	}{
		{"20s", 20 * time.Second},
		{"20ms", 20 * time.Millisecond},
		{"20", 0},
		{"-1s", 0},
		{"0", 0},
		{"1e3s", 0},
		{"5000000h", 0},
		{"300000h", 0},
		{"1us", 0},
	} {
		if err := os.WriteFile(file, []byte("handler-timeout: "+tt.text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		for name, o := range map[string]Options{
			"flag":     {Args: []string{"--handler-timeout=" + tt.text}},
			"variable": {Env: []string{"PAWL_HANDLER_TIMEOUT=" + tt.text}},
			"file":     {Args: []string{"--config=" + file}},
		} {
			o.Name, o.Env = "x", append(o.Env, "HOME=/home/x", "PAWL_BROKERS=a:1")
			var s workSettings
			err := s.load(o)
			if err == nil {
				s.Topic = "t"
				_, err = messaging.New(s.Config, func(context.Context, messaging.Delivery) error { return nil })
			}
			if tt.want == 0 && err == nil {
				t.Errorf("%q by %s is taken for %v, want it refused", tt.text, name, s.HandlerTimeout)
			}
			if tt.want > 0 && (err != nil || s.HandlerTimeout != tt.want) {
				t.Errorf("%q by %s is %v, %v; want %v", tt.text, name, s.HandlerTimeout, err, tt.want)
			}
		}
	}
}
