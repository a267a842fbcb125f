package pawl

import (
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/internal/config"
)

// Each setting goes where it belongs.
func TestSettings(t *testing.T) {
	var got settings
	err := got.load(Options{
		Name: "x",
		Args: strings.Fields(`--brokers=a:1,b:2 --application=orders --instance=one --state-dir=/var/lib/orders
			--sasl-mechanism=SCRAM-SHA-512 --sasl-username=ann --start=2026-01-02T03:04:05Z --on-failure=dead-letter
			--on-offset-out-of-range=latest --accept-state-loss --commit-interval=200ms --commit-pause=6ms --transaction-bytes=1MiB
			--transaction-messages=50 --transaction-timeout=11s --flush-interval=61s --flush-bytes=2MiB --fence-timeout=62s --start-timeout=29s
			--restore-stall=63s --backoff-min=101ms --backoff-max=31s --drain=32s --stuck-after=6m --session-timeout=12s
			--heartbeat-interval=301ms --topics-interval=13s --memory=1GiB --replication=3 --allow-old-broker --stop=keep
			--admin=:9999 --log-level=debug --log-format=json`),
		Env: []string{"PAWL_SASL_PASSWORD=hunter2", "PAWL_ADMIN_TOKEN=open sesame"},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := settings{
		Config: consumer.Config{
			Application: "orders",
			Cluster:     cluster.Cluster{Brokers: []string{"a:1", "b:2"}, SASL: cluster.SASL{Mechanism: "SCRAM-SHA-512", Username: "ann", Password: "hunter2"}},
			StateDir:    "/var/lib/orders", Instance: "one",
			Start:              consumer.StartAt(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)),
			OnOffsetOutOfRange: consumer.GoToLatest, OnFailure: consumer.DeadLetter,
			CommitInterval: 200 * time.Millisecond, CommitPause: 6 * time.Millisecond,
			TransactionBytes: 1 << 20, TransactionMessages: 50, TransactionTimeout: 11 * time.Second,
			FlushInterval: 61 * time.Second, FlushBytes: 2 << 20, FenceTimeout: 62 * time.Second, StartTimeout: 29 * time.Second, RestoreStall: 63 * time.Second,
			BackoffMin: 101 * time.Millisecond, BackoffMax: 31 * time.Second, DrainTimeout: 32 * time.Second, StuckAfter: 6 * time.Minute,
			SessionTimeout: 12 * time.Second, HeartbeatInterval: 301 * time.Millisecond, TopicsInterval: 13 * time.Second,
			Memory: 1 << 30, Replication: 3, KeepMembership: true, AcceptStateLoss: true, AllowOldBroker: true,
		},
		process: process{admin: ":9999", adminToken: "open sesame", logLevel: slog.LevelDebug, logFormat: "json"},
		stop:    "keep",
	}
	got.loaded = nil
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(settings{}, process{}, consumer.Start{}), cmpopts.EquateComparable(config.TLSFiles{}, embedded{}, cluster.SASL{}), cmpopts.IgnoreFields(process{}, "loaded")); diff != "" {
		t.Errorf("settings: got + want -\n%s", diff)
	}
}

// Every field of a consumer's configuration is a setting, but for those that
// the program itself fills in.
func TestSettingsAreWhole(t *testing.T) {
	var s settings
	if err := s.load(Options{Name: "x", Env: []string{"HOME=/home/x"}}); err != nil {
		t.Fatal(err)
	}
	ours := []string{"Cluster", "StateDir", "Logger", "Registerer"}                                             // filled by the program
	zero := []string{"Instance", "Start", "Replication", "KeepMembership", "AcceptStateLoss", "AllowOldBroker"} // zero is their default
	v := reflect.ValueOf(s.Config)
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		if v.Field(i).IsZero() && !slices.Contains(ours, name) && !slices.Contains(zero, name) {
			t.Errorf("Config.%s has no setting with a default", name)
		}
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
}

func TestApplicationOf(t *testing.T) {
	for program, want := range map[string]string{
		"wordcount": "wordcount", "/usr/bin/Word_Count": "word-count", "orders.test": "orders-test", `./orders.exe`: "orders",
		"Ünïcode": "n-code", "v1.2": "v1-2", "": "pawl", "...": "pawl", "/": "pawl",
	} {
		got := applicationOf(program)
		if got != want {
			t.Errorf("applicationOf(%q) = %q, want %q", program, got, want)
		}
		if err := consumer.CheckApplication(got); err != nil {
			t.Errorf("applicationOf(%q): %v", program, err)
		}
	}
}
