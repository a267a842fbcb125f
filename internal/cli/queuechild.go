package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/messaging"
)

// queueChild is what a process of the queue demo is told by its flags.
type queueChild struct {
	application, instance string
	brokers               []string // the rest of the cluster is in its environment
	seed                  uint64
	repaired              bool
}

// The topics of a run, beside those that messaging makes.
func queueInput(application string) string    { return application + ".work" }
func queueReceipts(application string) string { return application + ".receipts" }

// queueConsumer is the name of the consumer of a run's application.
const queueConsumer = "worker"

// queueTiers are the delays of a demo, so short that they fit into one.
var queueTiers = []time.Duration{200 * time.Millisecond, time.Second}

func (c queueChild) args() []string {
	args := []string{"demo", "queue-child", "--application", c.application, "--instance", c.instance, "--seed", strconv.FormatUint(c.seed, 10), "--repaired=" + strconv.FormatBool(c.repaired)}
	for _, b := range c.brokers {
		args = append(args, "--brokers", b)
	}
	return args
}

// newQueueChildCommand is the command that the queue demo runs its processes by.
func newQueueChildCommand() *cobra.Command {
	var c queueChild
	cmd := childCommand("queue-child", "Handle work items until standard input is closed", func(cmd *cobra.Command, at cluster.Cluster, log *slog.Logger) error {
		return c.run(cmd.Context(), at, cmd.InOrStdin(), log)
	})
	f := cmd.Flags()
	f.StringVar(&c.application, "application", "", "the application's name")
	f.StringVar(&c.instance, "instance", "", "the process's name in the group")
	f.Uint64Var(&c.seed, "seed", 0, "decides which attempts fail")
	f.BoolVar(&c.repaired, "repaired", false, "no attempt fails")
	return cmd
}

// run works until standard input ends, which it also does when the parent ends
// in whatever way. Then it drains.
func (c queueChild) run(ctx context.Context, at cluster.Cluster, stdin io.Reader, log *slog.Logger) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // which ends with the process, at the latest
		if _, err := io.Copy(io.Discard, stdin); err != nil {
			log.Error("read standard input", "error", err)
		}
		time.AfterFunc(childDrain+5*time.Second, func() { // the broker may have gone with the parent
			log.Error("the drain did not end in time")
			os.Exit(exitError)
		})
		cancel()
	}()
	receipts, err := kafka.NewProducer(kafka.Config{Cluster: at, ClientID: c.application, Logger: log})
	if err != nil {
		return err
	}
	defer receipts.Close()
	return messaging.Run(ctx, messaging.Config{
		Cluster: at, Topic: queueInput(c.application), Application: c.application, Consumer: queueConsumer, Instance: c.instance,
		Retry:          messaging.Retry{InPlace: queueAttempts - len(queueTiers), BackoffMin: 10 * time.Millisecond, BackoffMax: 50 * time.Millisecond, Tiers: queueTiers},
		Breaker:        messaging.Breaker{Failures: -1},
		DeadLetters:    messaging.DeadLetters{MaxCrashes: 1000}, // these crashes are nobody's fault
		SessionTimeout: demoSession, DrainTimeout: childDrain, Logger: log,
	}, func(ctx context.Context, d messaging.Delivery) error { return c.handle(ctx, receipts, d) })
}

// errRule is why a work item fails.
var errRule = errors.New("the rule says that this attempt fails")

// receiptAgain is the pause after a receipt that could not be published.
const receiptAgain = 100 * time.Millisecond

// handle does as the rule says, and publishes a receipt of it.
func (c queueChild) handle(ctx context.Context, receipts *kafka.Producer, d messaging.Delivery) error {
	r := receipt{Input: position{d.Partition(), d.Offset()}, Attempt: d.Attempt(), Repaired: c.repaired}
	needs := queueRule(c.seed, r.Input)
	r.OK = c.repaired || needs > 0 && r.Attempt >= needs
	value, err := json.Marshal(r)
	if err != nil {
		return messaging.DeadLetter(err)
	}
	for {
		err := receipts.Publish(ctx, kafka.Record{Topic: queueReceipts(c.application), Partition: -1, Key: d.Key(), Value: value})
		if err == nil {
			break
		}
		// An attempt without a receipt would be missed: it ends with its
		// context, and is then none.
		if pause(ctx, receiptAgain, nil) != nil {
			return fmt.Errorf("publish the receipt: %w", err)
		}
	}
	if !r.OK {
		return errRule
	}
	return nil
}
