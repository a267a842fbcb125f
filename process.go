package pawl

import (
	"errors"
	"fmt"
	"log/slog"
	"net"

	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/internal/config"
)

// process are the settings of the process around what it runs.
type process struct {
	admin      string
	adminToken cluster.Secret
	logLevel   slog.Level
	logFormat  string
	version    bool

	loaded *config.Loaded // what has set everything
}

func (s *process) table() []config.Setting {
	return []config.Setting{
		{Name: "admin", Value: config.Parsed(&s.admin, "HOST:PORT", parseAddress), Default: "127.0.0.1:0", Help: "where /metrics, /healthz, /readyz and /v1/status are served; port 0 is a free one"},
		{Name: config.AdminToken, Value: config.SecretText(&s.adminToken), Secret: true, Help: "token that whoever asks there must send, but for health; needed where others reach it"},
		{Name: "log-level", Value: config.Parsed(&s.logLevel, "debug|info|warn|error", parseLevel), Default: "info", Help: "least level that is logged"},
		{Name: "log-format", Value: config.Choice(&s.logFormat, "text", "json"), Default: "text", Help: "format of the log, which goes to standard error"},
		{Name: "version", Value: config.Bool(&s.version), FlagOnly: true, Help: "print the version and exit"},
	}
}

// read fills a table of settings in. It is done, with or without an error,
// where something else is asked for than that the program runs.
func (s *process) read(table []config.Setting, o Options) (done bool, err error) {
	s.loaded, err = config.Read(table, config.Input{Args: o.Args, Env: o.Env})
	return err != nil || s.version, err
}

// check reports what is wrong with the settings of the process.
func (s *process) check() error {
	if !isLoopback(s.admin) && s.adminToken == "" {
		return fmt.Errorf("%s %q: others can reach this address: set PAWL_ADMIN_TOKEN or --admin-token-file, and whoever asks must know it", s.loaded.Named("admin"), s.admin)
	}
	return nil
}

// named is the application's name: the one that is set, or else the program's.
func (s *process) named(application *string, o Options) {
	if *application == "" {
		*application = applicationOf(o.Name)
		s.loaded.Derive("application", *application, "the program's file name")
	}
}

// budget is the program's memory: what is set, or else what there is room for.
func (s *process) budget(memory *int64, o Options) {
	if *memory == 0 {
		var why string
		*memory, why = defaultMemory(o.Env, memoryLimits())
		s.loaded.Derive("memory", sizeText(*memory), why)
	}
}

func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}

// explain names what has set each field of a Config that is wrong.
func (s *process) explain(err error, settings map[string]string) error {
	return usageError{s.loaded.Explain(err, settings)}
}

// reach finishes how a cluster is reached, where one is named, or says what is
// wrong with it where none is.
func (s *process) reach(c *cluster.Cluster, tls config.TLSFiles) error {
	if len(c.Brokers) > 0 {
		return s.loaded.LoadCluster(c, tls, "")
	}
	if tls.Wanted() || c.SASL != (cluster.SASL{}) {
		return errors.New("TLS or SASL is set and no brokers are named: set --brokers")
	}
	return nil
}
