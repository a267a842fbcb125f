package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/internal/config"
	"github.com/pawlstream/pawl/internal/kafka"
)

func newDoctorCommand() *cobra.Command {
	d := &doctor{now: time.Now}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check the cluster, an application's topics, permissions and the disk, and say what to mend",
		Long: `Checks what a program needs, and says of each thing what is wrong and what to do:
whether brokers can be reached, at the addresses of --brokers and at those by
which they call themselves; whether they are new enough; with --application,
whether its topics are set right and this user may use them, its group and its
transactional IDs; with --topic, the same of topics that it consumes; and with
--state-dir, whether there is a disk to keep state on.

It changes nothing on the cluster. It exits with status 1 if something fails.`,
		Args: noArguments,
	}
	d.cluster = addCluster(cmd, config.Setting{Name: "application", Value: config.Text(&d.application, "NAME"), Help: "check the topics and permissions of this application"},
		config.Setting{Name: "state-dir", Value: config.Path(&d.stateDir, "DIR"), Help: "check the disk of this directory"})
	f := cmd.Flags()
	f.StringSliceVar(&d.topics, "topic", nil, "check this topic, which the application consumes; again for another")
	o := &operation{cmd: cmd, cluster: func() (cluster.Cluster, error) { return d.cluster.load(os.Environ()) }}
	completeFlag(cmd, "application", o.applicationNames)
	completeFlag(cmd, "topic", o.topicNames)
	addOutput(cmd, &d.output)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return d.command(cmd) }
	return cmd
}

// doctor checks what a program needs.
type doctor struct {
	cluster     *clusterSettings
	application string
	stateDir    string
	topics      []string
	output      string
	now         func() time.Time

	findings []finding
}

// The outcomes of a check.
const (
	isOK      = "ok"
	isWarning = "warn"
	isFailure = "fail"
	isSkipped = "skip" // it could not be done, or has nothing to be done on
)

// finding is what a check has found.
type finding struct {
	Status string `json:"status"`
	Check  string `json:"check"`
	Detail string `json:"detail"`
	Mend   string `json:"mend,omitempty"` // what to do about it
}

func (d *doctor) found(status, check, detail, mend string) {
	d.findings = append(d.findings, finding{status, check, detail, mend})
}

func (d *doctor) ok(check, format string, args ...any) {
	d.found(isOK, check, fmt.Sprintf(format, args...), "")
}

func (d *doctor) skip(check, format string, args ...any) {
	d.found(isSkipped, check, fmt.Sprintf(format, args...), "")
}

func (d *doctor) command(cmd *cobra.Command) error {
	if err := checkOutput(cmd, d.output); err != nil {
		return err
	}
	c, err := d.cluster.load(os.Environ())
	if err != nil {
		return err
	}
	if d.application != "" {
		if err := consumer.CheckApplication(d.application); err != nil {
			return usageError{err, cmd}
		}
	}
	ctx, stop := untilSignal(cmd)
	defer stop()
	if err := d.examine(ctx, kafka.Config{Cluster: c, Logger: slog.New(slog.DiscardHandler)}); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return statusError(exitInterrupted)
	}
	o := &operation{cmd: cmd, output: d.output}
	if err := o.document(d.findings, d.show); err != nil {
		return err
	}
	for _, f := range d.findings {
		if f.Status == isFailure {
			return statusError(exitError)
		}
	}
	return nil
}

func (d *doctor) show(t *table) {
	failed, warned := 0, 0
	for _, f := range d.findings {
		t.row(f.Status, f.Check, f.Detail)
		if f.Mend != "" {
			t.row(" ", " ", "→ "+f.Mend)
		}
		switch f.Status {
		case isFailure:
			failed++
		case isWarning:
			warned++
		}
	}
	t.line("")
	t.line("%d checks: %d failed, %d warnings", len(d.findings), failed, warned)
}

// doctorTime bounds each question to the cluster.
const doctorTime = 10 * time.Second

// examine makes all checks.
func (d *doctor) examine(ctx context.Context, cfg kafka.Config) error {
	if d.brokers(ctx, cfg) {
		a, err := kafka.NewAdmin(cfg)
		if err != nil {
			return err
		}
		defer a.Close()
		d.version(ctx, a)
		names := d.applicationTopics(ctx, a)
		d.permissions(ctx, a, names)
		d.clock(ctx, a, names)
	} else {
		for _, check := range []string{"version", "topics", "permissions", "clock"} {
			d.skip(check, "no broker was reached")
		}
	}
	d.disk()
	return nil
}

// brokers checks every address, and says whether there is a way to the cluster.
func (d *doctor) brokers(ctx context.Context, cfg kafka.Config) bool {
	var advertised []string
	tried := make(map[string]error)
	try := func(address string) ([]string, error) {
		if err, done := tried[address]; done {
			return nil, err
		}
		others, err := kafka.Probe(ctx, cfg.Cluster, address)
		tried[address] = err
		return others, err
	}
	reached := 0
	for _, address := range cfg.Cluster.Brokers {
		others, err := try(address)
		if err != nil {
			d.unreached("broker "+address, err, "")
			continue
		}
		reached++
		d.ok("broker "+address, "reached (%s)", howReached(cfg))
		if advertised == nil {
			advertised = others
		}
	}
	usable := 0
	for _, address := range advertised {
		_, known := tried[address]
		_, err := try(address)
		switch {
		case err == nil:
			usable++
			if !known {
				d.ok("advertised "+address, "reached from here")
			}
		case !known:
			d.unreached("advertised "+address, err, "clients go where a broker says that it is: set its advertised.listeners (of pawl serve: --advertise) to an address that is reached from here, or run this where that one is")
		}
	}
	return reached > 0 && usable > 0
}

func howReached(cfg kafka.Config) string {
	how := "without TLS"
	if cfg.Cluster.TLS != nil {
		how = "TLS"
	}
	if m := cfg.Cluster.SASL.Mechanism; m != "" {
		return how + ", SASL " + m
	}
	return how + ", no SASL"
}

// unreached says why a broker was not reached, in words and by the error.
func (d *doctor) unreached(check string, err error, mend string) {
	var connect *kafka.ConnectError
	if !errors.As(err, &connect) {
		d.found(isFailure, check, err.Error(), mend)
		return
	}
	if mend == "" {
		mend = mendConnection(connect.Kind())
	}
	d.found(isFailure, check, fmt.Sprintf("%s (%s): %v", connect.Likely, connect.Tried, connect.Err), mend)
}

// mendConnection says what to do about a connection that failed.
func mendConnection(kind kafka.ConnectKind) string {
	switch kind {
	case kafka.PlainPort:
		return "leave TLS away, or name the port of the brokers' TLS listener"
	case kafka.TLSPort:
		return "set --tls, or --tls-ca with the certificate of the authority that signs the brokers'"
	case kafka.BadCertificate:
		return "check --tls-ca, --tls-cert and --tls-key, and --tls-server-name against the names in the broker's certificate"
	case kafka.NoSASL:
		return "leave SASL away, or name the port of a listener that takes it"
	case kafka.WantsSASL:
		return "set --sasl-mechanism, --sasl-username and the password"
	case kafka.BadLogin:
		return "check --sasl-username and the password (or token), and that the mechanism is the one that the user was made for"
	case kafka.BadMechanism:
		return "set --sasl-mechanism to one that the broker offers"
	}
	return "check the address, that the broker runs, and the firewalls in between"
}

// version checks what brokers can do.
func (d *doctor) version(ctx context.Context, a *kafka.Admin) {
	ctx, cancel := context.WithTimeout(ctx, doctorTime)
	defer cancel()
	switch err := a.CheckVersion(ctx); {
	case err == nil:
		d.ok("version", "Apache Kafka 4.0 or later, with transaction.version 2")
	case errors.Is(err, kafka.ErrOldBroker):
		d.found(isFailure, "version", err.Error(), "upgrade the brokers and finalize transaction.version 2; or set --allow-old-broker, and know that a dead process's transaction may hang there")
	default:
		d.found(isFailure, "version", err.Error(), "")
	}
}
