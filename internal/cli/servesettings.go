package cli

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pawlstream/pawl/broker"
	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/internal/config"
)

// serveConfig is what the settings of serve say.
type serveConfig struct {
	dir        string
	listen     string
	advertise  string
	admin      string
	adminToken cluster.Secret

	cert, key, clientCA string
	users               string
	insecure            bool

	set       []string
	unsynced  bool
	memory    int64
	freeSpace int64

	level  slog.Level
	format string

	own *ownSettings
}

// table are the settings of serve, each with a flag, a variable and a key.
func (c *serveConfig) table() []config.Setting {
	return []config.Setting{
		{Name: "dir", Value: config.Path(&c.dir, "DIR"), Help: "the directory of the data; it is made if it isn't there"},
		{Name: "listen", Value: config.Parsed(&c.listen, "HOST:PORT", parseListen), Default: "127.0.0.1:9092", Help: "the address to listen on"},
		{Name: "advertise", Value: config.Text(&c.advertise, "HOST:PORT"), Unset: "the one that is listened on", Help: "the address that clients are told to connect to"},
		{Name: "admin", Value: config.Text(&c.admin, "HOST:PORT"), Default: "127.0.0.1:0", Help: "the address of the admin API; port 0 is a free one"},
		{Name: config.AdminToken, Value: config.SecretText(&c.adminToken), Secret: true, Help: "token that whoever asks there must send, but for health; needed where others reach it"},
		{Name: "tls-cert", Value: config.Path(&c.cert, "FILE"), Help: "speak TLS, with the certificate in this file"},
		{Name: "tls-key", Value: config.Path(&c.key, "FILE"), Help: "the file of the certificate's key"},
		{Name: "tls-client-ca", Value: config.Path(&c.clientCA, "FILE"), Help: "let in only clients whose certificate is signed by one in this file"},
		{Name: "users", Value: config.Path(&c.users, "FILE"), Help: "a file of who may connect, by SASL PLAIN or SCRAM: a line NAME:PASSWORD each"},
		{Name: "insecure", Value: config.Bool(&c.insecure), Help: "let everybody in who reaches an address that is not loopback"},
		{Name: "set", Value: config.ParsedList(&c.set, "NAME=VALUE", parseSet), Help: "a setting of the broker by Kafka's name, such as log.retention.ms=86400000; again for another"},
		{Name: "unsynced", Value: config.Bool(&c.unsynced), Help: "acknowledge what is not synced to disk yet: a power cut loses the last moments of it"},
		{Name: "memory", Value: config.Bytes(&c.memory), Default: "512MiB", Help: "bound of what requests, answers and caches take"},
		{Name: "free-space", Value: config.Bytes(&c.freeSpace), Default: "256MiB", Help: "space on the disk below which writes are refused"},
		{Name: "log-level", Value: config.Parsed(&c.level, "debug|info|warn|error", parseLogLevel), Default: "info", Help: "least level that is logged"},
		{Name: "log-format", Value: config.Choice(&c.format, "text", "json"), Default: "text", Help: "format of the log, which goes to standard error"},
	}
}

// parseSet takes NAME=VALUE pairs between commas, which a value may have, too:
// what has no = belongs to the value before it.
func parseSet(text string) (pairs []string, err error) {
	for item := range strings.SplitSeq(text, ",") {
		name, _, ok := strings.Cut(item, "=")
		switch {
		case ok && name != "":
			pairs = append(pairs, item)
		case ok || len(pairs) == 0:
			return nil, errors.New("want NAME=VALUE")
		default:
			pairs[len(pairs)-1] += "," + item
		}
	}
	return pairs, nil
}

func parseListen(text string) (string, error) {
	if _, port, err := net.SplitHostPort(text); err != nil || port == "" {
		return "", errors.New("want HOST:PORT, such as 127.0.0.1:9092")
	}
	return text, nil
}

func parseLogLevel(text string) (level slog.Level, err error) {
	switch text {
	case "debug", "info", "warn", "error":
		return level, level.UnmarshalText([]byte(text))
	}
	return 0, errors.New("want debug, info, warn or error")
}

func (c *serveConfig) add(cmd *cobra.Command) { c.own = addOwn(cmd, c.table()) }

// load fills the settings in, and returns how they say that the broker runs.
func (c *serveConfig) load(cmd *cobra.Command, env []string) (b broker.Config, err error) {
	loaded, err := c.own.load(env)
	if err != nil {
		return b, err
	}
	return c.brokerConfig(cmd, loaded.Named)
}

// brokerConfig is how the settings say that the broker runs, or what is wrong
// with them. named is what has set each.
func (c *serveConfig) brokerConfig(cmd *cobra.Command, named func(string) string) (b broker.Config, err error) {
	host := hostOf(c.listen)
	switch {
	case c.dir == "":
		return b, usagef(cmd, "--dir is not set: name the directory of the broker's data")
	case c.advertise != "" && !connectable(c.advertise):
		return b, usagef(cmd, "%s %q: want a HOST:PORT that a client can connect to", named("advertise"), c.advertise)
	case (c.cert == "") != (c.key == ""):
		return b, usagef(cmd, "--tls-cert and --tls-key go together, and one of them is not set")
	case c.clientCA != "" && c.cert == "":
		return b, usagef(cmd, "--tls-client-ca needs --tls-cert and --tls-key")
	case c.users == "" && c.clientCA == "" && !c.insecure && !isLoopback(host):
		return b, usagef(cmd, "%s %s: others can reach this address, and nobody has to say who they are: set --users or --tls-client-ca, or --insecure to let everybody in", named("listen"), c.listen)
	case c.adminToken == "" && !isLoopback(hostOf(c.admin)):
		return b, usagef(cmd, "%s %s: others can reach this address: set PAWL_ADMIN_TOKEN or --admin-token-file, and whoever asks must know it", named("admin"), c.admin)
	}
	b = broker.Config{
		Listen: c.listen, Advertise: c.advertise, Unsynced: c.unsynced, Memory: c.memory, FreeSpace: c.freeSpace,
		Insecure: c.insecure || c.clientCA != "",
	}
	if b.Settings, err = brokerSettings(cmd, c.set, named); err != nil {
		return b, err
	}
	if b.TLS, err = c.tls(named); err != nil {
		return b, err
	}
	if c.users != "" {
		if b.Users, err = readUsers(c.users); err != nil {
			return b, fmt.Errorf("%s: %w", named("users"), err)
		}
	}
	return b, nil
}

// brokerSettings are the pairs that set names.
func brokerSettings(cmd *cobra.Command, pairs []string, named func(string) string) (map[string]string, error) {
	settings := make(map[string]string)
	for _, pair := range pairs {
		name, value, _ := strings.Cut(pair, "=")
		if _, twice := settings[name]; twice {
			return nil, usagef(cmd, "%s names %s twice", named("set"), name)
		}
		settings[name] = value
	}
	return settings, nil
}

// tls reads the certificates, and returns nil if there are none.
func (c *serveConfig) tls(named func(string) string) (*tls.Config, error) {
	if c.cert == "" {
		return nil, nil
	}
	pair, err := tls.LoadX509KeyPair(c.cert, c.key)
	if err != nil {
		return nil, fmt.Errorf("%s %s with %s %s: %w", named("tls-cert"), c.cert, named("tls-key"), c.key, err)
	}
	t := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}
	if c.clientCA != "" {
		pem, err := os.ReadFile(c.clientCA)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", named("tls-client-ca"), err)
		}
		t.ClientCAs, t.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
		if !t.ClientCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s: %s holds no certificate in PEM form", named("tls-client-ca"), c.clientCA)
		}
	}
	return t, nil
}

// usersMax is the size of the longest file of users that is read.
const usersMax = 1 << 20

// readUsers reads who may connect: a line NAME:PASSWORD each. Empty lines, and
// those that begin with #, say nothing. No error shows a password.
func readUsers(name string) ([]broker.User, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, usersMax+1))
	if err != nil {
		return nil, err
	}
	if len(text) > usersMax {
		return nil, fmt.Errorf("%s is longer than %d bytes", name, usersMax)
	}
	var users []broker.User
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		line = strings.TrimRight(line, "\r\n")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		user, password, ok := strings.Cut(line, ":")
		if !ok || user == "" || password == "" {
			return nil, fmt.Errorf("%s line %d: want NAME:PASSWORD", name, number)
		}
		users = append(users, broker.User{Name: user, Password: password})
	}
	if len(users) == 0 {
		return nil, fmt.Errorf("%s names nobody", name)
	}
	return users, nil
}
