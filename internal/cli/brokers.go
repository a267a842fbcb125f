package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/internal/config"
)

// brokerFlags say how a command reaches brokers. Each flag has the variable
// that it has in a program: PAWL_BROKERS for --brokers.
type brokerFlags struct {
	brokers      []string
	tls          config.TLSFiles
	mechanism    string
	username     string
	passwordFile string
	getenv       func(string) string
}

func (b *brokerFlags) add(f *pflag.FlagSet) {
	b.getenv = os.Getenv
	f.StringSliceVar(&b.brokers, "brokers", nil, "Kafka brokers to start from, HOST:PORT")
	f.BoolVar(&b.tls.On, "tls", false, "use TLS; the other TLS flags imply it")
	f.StringVar(&b.tls.CA, "tls-ca", "", "file of the certificates that sign the brokers'")
	f.StringVar(&b.tls.Cert, "tls-cert", "", "file of this client's certificate")
	f.StringVar(&b.tls.Key, "tls-key", "", "file of its key")
	f.StringVar(&b.tls.ServerName, "tls-server-name", "", "name that the brokers' certificates must have")
	f.StringVar(&b.mechanism, "sasl-mechanism", "", "how to log in: "+strings.Join([]string{cluster.Plain, cluster.ScramSHA256, cluster.ScramSHA512}, ", "))
	f.StringVar(&b.username, "sasl-username", "", "who logs in")
	f.StringVar(&b.passwordFile, "sasl-password-file", "", "file that holds the password (or set PAWL_SASL_PASSWORD)")
}

// cluster returns what the flags and, where they are not set, the variables
// say.
func (b *brokerFlags) cluster(cmd *cobra.Command) (cluster.Cluster, error) {
	var errs []error
	for _, name := range []string{"brokers", "tls", "tls-ca", "tls-cert", "tls-key", "tls-server-name", "sasl-mechanism", "sasl-username", "sasl-password-file"} {
		variable := "PAWL_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
		if text := b.getenv(variable); text != "" && !cmd.Flags().Changed(name) {
			if err := cmd.Flags().Set(name, text); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", variable, err))
			}
		}
	}
	if len(b.brokers) == 0 {
		return cluster.Cluster{}, usageError{errors.Join(append(errs, errors.New("no brokers are named: set --brokers or PAWL_BROKERS"))...), cmd}
	}
	c := cluster.Cluster{Brokers: b.brokers, SASL: cluster.SASL{Mechanism: b.mechanism, Username: b.username}}
	if b.mechanism != "" {
		c.SASL.Password = b.getenv("PAWL_SASL_PASSWORD")
		if b.passwordFile != "" {
			text, err := os.ReadFile(b.passwordFile)
			if err != nil {
				errs = append(errs, fmt.Errorf("--sasl-password-file: %w", err))
			}
			c.SASL.Password = strings.TrimRight(string(text), "\r\n")
		}
	}
	var err error
	if c.TLS, err = b.tls.Load(); err != nil {
		errs = append(errs, err)
	}
	if err := errors.Join(append(errs, c.Validate())...); err != nil {
		return c, usageError{err, cmd}
	}
	return c, nil
}

// untilSignal returns a context that ends with the first signal to stop. The
// second ends the process.
func untilSignal(cmd *cobra.Command) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancel(cmd.Context())
	end := onSignals(cancel, func(s os.Signal) {
		fmt.Fprintf(cmd.ErrOrStderr(), "second signal (%v): exiting at once\n", s)
	})
	return ctx, func() {
		end()
		cancel()
	}
}
