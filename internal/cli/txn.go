package cli

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

func newTxnCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "txn",
		Short: "Look at transactions and who writes them, and abort those that hang",
		Long: `While a transaction is open, readers of committed messages see nothing that comes
after its first message in a partition. A coordinator ends each by itself after
its timeout. One that hangs is known to no coordinator, and hides what comes
after it until somebody aborts it.`,
		Args: onlyCommands,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newTxnListCommand(), newTxnProducersCommand(), newTxnAbortCommand())
	return cmd
}

// txnRow is a transactional ID.
type txnRow struct {
	ID         string         `json:"transactional_id"`
	ProducerID int64          `json:"producer_id"`
	Epoch      int16          `json:"epoch"` // -1 where it is not known
	State      string         `json:"state"`
	Started    string         `json:"started,omitempty"` // while one is open
	TimeoutMs  int64          `json:"timeout_ms"`
	Partitions []partitionRef `json:"partitions"`
}

// producerRow is a producer that a partition remembers.
type producerRow struct {
	Topic         string `json:"topic"`
	Partition     int32  `json:"partition"`
	ProducerID    int64  `json:"producer_id"`
	Epoch         int16  `json:"epoch"`
	LastSequence  int32  `json:"last_sequence"`
	LastWrite     string `json:"last_write"`
	StartOffset   int64  `json:"transaction_start"` // -1: no transaction is open
	TransactionID string `json:"transactional_id,omitempty"`
	State         string `json:"state"` // none, open or hanging
}

func newProducerRow(p kafka.PartitionProducer) producerRow {
	r := producerRow{p.Partition.Topic, p.Partition.Number, p.ProducerID, p.Epoch, p.LastSequence, moment(p.LastWrite), p.StartOffset, p.TransactionalID, "none"}
	switch {
	case p.Hangs():
		r.State = "hanging"
	case p.StartOffset >= 0:
		r.State = "open"
	}
	return r
}

func showProducers(t *table, rows []producerRow) {
	t.row("PARTITION", "PRODUCER", "EPOCH", "LAST SEQUENCE", "LAST WRITE", "TRANSACTION", "FROM OFFSET", "TRANSACTIONAL ID")
	for _, r := range rows {
		t.row(fmt.Sprintf("%s-%d", r.Topic, r.Partition), r.ProducerID, r.Epoch, known(int64(r.LastSequence)), r.LastWrite, r.State, known(r.StartOffset), r.TransactionID)
	}
}

// hangsAfter is how long ago a transaction was last written to that is taken
// for hanging: the longest timeout that brokers allow by default. A younger one
// may be on its way to its coordinator.
const hangsAfter = 15 * time.Minute

var txnListExclusions = exclusions{
	{"open", "hanging", "one that hangs is open, and its coordinator does not know it"},
	{"open", "topic", "it is for those that hang"},
	{"open", "older", "it is for those that hang"},
}

func newTxnListCommand() *cobra.Command {
	var (
		o       *operation
		open    bool
		hanging bool
		names   []string
		older   time.Duration
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List transactional IDs, or the transactions that hang",
		Example: `  pawl txn list --open
  pawl txn list --hanging --topic orders`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := txnListExclusions.check(cmd); err != nil {
				return err
			}
			switch {
			case !hanging && (cmd.Flags().Changed("topic") || cmd.Flags().Changed("older")):
				return usagef(cmd, "--topic and --older are for --hanging")
			case older < 0:
				return usagef(cmd, "--older %v: want 0 or more", older)
			}
			return o.run(func(ctx context.Context, c asked) error {
				if hanging {
					return listHanging(ctx, o, c, names, older)
				}
				return listTransactions(ctx, o, c, open)
			})
		},
	}
	o = newOperation(cmd)
	f := cmd.Flags()
	f.BoolVar(&open, "open", false, "only those that have a transaction open")
	f.BoolVar(&hanging, "hanging", false, "instead, the transactions that no coordinator will end")
	f.StringArrayVar(&names, "topic", nil, "look in this topic only; again for another (default: in all)")
	f.DurationVar(&older, "older", hangsAfter, "with --hanging: last written to so long ago, at least")
	completeFlag(cmd, "topic", o.topicNames)
	return cmd
}

func listTransactions(ctx context.Context, o *operation, c asked, open bool) error {
	ts, err := c.Transactions(ctx)
	if err != nil {
		return err
	}
	rows := []txnRow{}
	for _, t := range ts {
		if open && t.State != kafka.StateOngoing {
			continue
		}
		r := txnRow{ID: t.ID, ProducerID: t.ProducerID, Epoch: t.Epoch, State: t.State, TimeoutMs: t.Timeout.Milliseconds(), Partitions: []partitionRef{}}
		if !t.Started.IsZero() {
			r.Started = moment(t.Started)
		}
		for _, p := range t.Partitions {
			r.Partitions = append(r.Partitions, partitionRef{p.Topic, p.Number})
		}
		rows = append(rows, r)
	}
	return o.document(rows, func(t *table) {
		t.row("TRANSACTIONAL ID", "PRODUCER", "EPOCH", "STATE", "STARTED", "TIMEOUT", "PARTITIONS")
		for _, r := range rows {
			t.row(r.ID, r.ProducerID, known(int64(r.Epoch)), r.State, r.Started, time.Duration(r.TimeoutMs)*time.Millisecond, memberRow{Partitions: r.Partitions}.partitions())
		}
	})
}

// ledPartitions returns the partitions of the named topics, or of all, that
// somebody can be asked about.
func ledPartitions(ctx context.Context, c asked, names []string) ([]topic.Partition, error) {
	topics, err := c.ListTopics(ctx)
	if err != nil {
		return nil, err
	}
	var parts []topic.Partition
	for _, t := range topics {
		if len(names) > 0 && !slices.Contains(names, t.Name) {
			continue
		}
		for _, p := range t.Parts {
			if p.Leader >= 0 {
				parts = append(parts, topic.Partition{Topic: t.Name, Number: p.Number})
			}
		}
	}
	for _, name := range names {
		if !slices.ContainsFunc(topics, func(t kafka.TopicDetail) bool { return t.Name == name }) {
			return nil, fmt.Errorf("topic %s: %w", printable(name), kafka.ErrUnknownTopic)
		}
	}
	return parts, nil
}

func listHanging(ctx context.Context, o *operation, c asked, names []string, older time.Duration) error {
	parts, err := ledPartitions(ctx, c, names)
	if err != nil {
		return err
	}
	producers, err := c.Producers(ctx, parts...)
	if err != nil {
		return err
	}
	rows := []producerRow{}
	for _, p := range producers {
		if p.Hangs() && time.Since(p.LastWrite) >= older {
			rows = append(rows, newProducerRow(p))
		}
	}
	return o.document(rows, func(t *table) {
		if len(rows) == 0 {
			t.line("no transaction hangs")
			return
		}
		showProducers(t, rows)
	})
}

func newTxnProducersCommand() *cobra.Command {
	var o *operation
	var partitions []int32
	var open bool
	cmd := &cobra.Command{
		Use:     "producers TOPIC",
		Short:   "Show who has written to a topic, and which transactions are open in it",
		Example: "  pawl txn producers orders --open",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef(cmd, "which topic? Name one")
			}
			return o.run(func(ctx context.Context, c asked) error {
				parts, err := ledPartitions(ctx, c, args)
				if err != nil {
					return err
				}
				if cmd.Flags().Changed("partition") {
					for _, n := range partitions {
						if !slices.Contains(parts, topic.Partition{Topic: args[0], Number: n}) {
							return fmt.Errorf("topic %s has no partition %d that has a leader", args[0], n)
						}
					}
					parts = slices.DeleteFunc(parts, func(p topic.Partition) bool { return !slices.Contains(partitions, p.Number) })
				}
				producers, err := c.Producers(ctx, parts...)
				if err != nil {
					return err
				}
				rows := []producerRow{}
				for _, p := range producers {
					if !open || p.StartOffset >= 0 {
						rows = append(rows, newProducerRow(p))
					}
				}
				return o.document(rows, func(t *table) { showProducers(t, rows) })
			})
		},
	}
	o = newOperation(cmd)
	cmd.ValidArgsFunction = oneOf(o.topicNames)
	cmd.Flags().Int32SliceVarP(&partitions, "partition", "p", nil, "only this partition; again for another")
	cmd.Flags().BoolVar(&open, "open", false, "only those that have a transaction open")
	return cmd
}

// txnAborted is what an abort comes to.
type txnAborted struct {
	TransactionalID string       `json:"transactional_id,omitempty"`
	Producer        *producerRow `json:"producer,omitempty"`
	Aborted         bool         `json:"aborted"`
	DryRun          bool         `json:"dry_run,omitempty"`
}

// txnAbort says which transaction is meant.
type txnAbort struct {
	id        string
	topic     string
	partition int32
	start     int64
	older     time.Duration
	ok        consent
}

var txnAbortExclusions = exclusions{
	dryRunNeedsNoYes,
	{"transactional-id", "topic", "a transaction is named by its ID, or by where it hangs"},
	{"transactional-id", "partition", "a transaction is named by its ID, or by where it hangs"},
	{"transactional-id", "start-offset", "a transaction is named by its ID, or by where it hangs"},
	{"transactional-id", "older", "it is for one that hangs"},
}

func newTxnAbortCommand() *cobra.Command {
	var o *operation
	var a txnAbort
	cmd := &cobra.Command{
		Use:   "abort (--transactional-id ID | --topic TOPIC --partition N --start-offset OFFSET)",
		Short: "Abort a transaction that is open or hangs",
		Long: `Abort ends a transaction that is open: none of its messages will be seen by
readers of committed messages.

By its transactional ID it asks the coordinator, which ends it in all partitions
and fences the producer: what that writes from then on is refused. One that hangs
has no coordinator; it is named by where it begins, as txn list --hanging says,
and its marker is written by hand. Nothing else would be safe, and so one that a
coordinator knows is refused.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := txnAbortExclusions.check(cmd); err != nil {
				return err
			}
			changed := cmd.Flags().Changed
			byPlace := changed("topic") && changed("partition") && changed("start-offset")
			switch {
			case a.id == "" && !byPlace:
				return usagef(cmd, "which transaction? Set --transactional-id, or --topic, --partition and --start-offset")
			case byPlace && (a.partition < 0 || a.start < 0):
				return usagef(cmd, "--partition %d --start-offset %d: want 0 or more", a.partition, a.start)
			case a.older < 0:
				return usagef(cmd, "--older %v: want 0 or more", a.older)
			}
			return o.run(func(ctx context.Context, c asked) error {
				if a.id != "" {
					return a.byID(ctx, o, c)
				}
				return a.byPlace(ctx, o, c)
			})
		},
	}
	o = newOperation(cmd)
	f := cmd.Flags()
	f.StringVar(&a.id, "transactional-id", "", "the transactional ID")
	f.StringVar(&a.topic, "topic", "", "the topic in which one hangs")
	f.Int32Var(&a.partition, "partition", 0, "its partition")
	f.Int64Var(&a.start, "start-offset", 0, "the offset at which the transaction begins there")
	f.DurationVar(&a.older, "older", hangsAfter, "refuse one that was written to since: it may be on its way to its coordinator")
	a.ok.add(cmd)
	completeFlag(cmd, "topic", o.topicNames)
	completeFlag(cmd, "transactional-id", func(_ *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
		return o.names(prefix, func(ctx context.Context, a *kafka.Admin) (ids []string, err error) {
			ts, err := a.Transactions(ctx)
			for _, t := range ts {
				if t.State == kafka.StateOngoing {
					ids = append(ids, t.ID)
				}
			}
			return ids, err
		})
	})
	return cmd
}

// plan prints to standard error what is meant, and asks.
func (a *txnAbort) plan(o *operation, plan string) error {
	if _, err := fmt.Fprintln(o.cmd.ErrOrStderr(), plan); err != nil {
		return fmt.Errorf("print the plan: %w", err)
	}
	if a.ok.dryRun {
		return nil
	}
	return a.ok.given(o.cmd, "It will be aborted.")
}

// abortTime bounds the wait for a coordinator to end a transaction.
const abortTime = time.Minute

func (a *txnAbort) byID(ctx context.Context, o *operation, c asked) error {
	ts, err := c.Transactions(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(ts, func(t kafka.Transaction) bool { return t.ID == a.id })
	switch {
	case i < 0:
		return fmt.Errorf("transactional ID %q: no coordinator knows it", a.id)
	case ts[i].State != kafka.StateOngoing:
		return fmt.Errorf("transactional ID %q: no transaction is open (%s)", a.id, ts[i].State)
	}
	t := ts[i]
	var refs []partitionRef
	for _, p := range t.Partitions {
		refs = append(refs, partitionRef{p.Topic, p.Number})
	}
	plan := fmt.Sprintf("transaction of %s (producer %d, epoch %d), open since %s in %s; its producer will be fenced", printable(t.ID), t.ProducerID, t.Epoch, moment(t.Started), printable(memberRow{Partitions: refs}.partitions()))
	if err := a.plan(o, plan); err != nil {
		return err
	}
	out := txnAborted{TransactionalID: t.ID, DryRun: a.ok.dryRun}
	if !a.ok.dryRun {
		ctx, cancel := context.WithTimeout(ctx, abortTime)
		defer cancel()
		if err := c.AbortTransaction(ctx, t.ID); err != nil {
			return err
		}
		out.Aborted = true
	}
	return o.document(out, out.show)
}

func (a *txnAbort) byPlace(ctx context.Context, o *operation, c asked) error {
	part := topic.Partition{Topic: a.topic, Number: a.partition}
	producers, err := c.Producers(ctx, part)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(producers, func(p kafka.PartitionProducer) bool { return p.StartOffset == a.start })
	if i < 0 {
		return fmt.Errorf("%s: no transaction is open that begins at offset %d; pawl txn producers shows those that are", part, a.start)
	}
	p := producers[i]
	switch age := time.Since(p.LastWrite); {
	case !p.Hangs():
		return fmt.Errorf("%s: the transaction at offset %d is that of %q, whose coordinator will end it; to abort it say --transactional-id", part, a.start, p.TransactionalID)
	case age < a.older:
		return fmt.Errorf("%s: the transaction at offset %d was written to %v ago, and may be on its way to its coordinator: wait, or set --older", part, a.start, age.Round(time.Second))
	}
	row := newProducerRow(p)
	plan := fmt.Sprintf("transaction of producer %d, epoch %d, in %s from offset %d, last written to %s, known to no coordinator", p.ProducerID, p.Epoch, part, p.StartOffset, moment(p.LastWrite))
	if err := a.plan(o, plan); err != nil {
		return err
	}
	out := txnAborted{Producer: &row, DryRun: a.ok.dryRun}
	if !a.ok.dryRun {
		if err := c.AbortHanging(ctx, p); err != nil {
			return err
		}
		out.Aborted = true
	}
	return o.document(out, out.show)
}

func (a txnAborted) show(t *table) {
	what := "transaction of " + a.TransactionalID
	if a.Producer != nil {
		what = fmt.Sprintf("transaction of producer %d in %s-%d", a.Producer.ProducerID, a.Producer.Topic, a.Producer.Partition)
	}
	if a.DryRun {
		t.line("%s would be aborted", what)
		return
	}
	t.line("%s aborted", what)
}
