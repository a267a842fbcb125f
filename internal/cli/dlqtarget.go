package cli

import (
	"context"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/messaging"
)

// toContextFlag names the context of another cluster that letters go to.
const toContextFlag = "to-context"

// intoContext says of letters where they go, and what that promises.
func intoContext(name string) string {
	return fmt.Sprintf("to the cluster of context %s, each at least once", printable(name))
}

// aim has letters sent to the cluster of another context, once that is known to
// be there, with the topic that they go to. Found out letter by letter, it would
// be said as often as there are letters, and not at all by a dry run.
func (s *settleFlags) aim(ctx context.Context, cmd *cobra.Command) error {
	own, err := s.cluster()
	if err != nil {
		return err
	}
	contexts, err := readContexts()
	if err != nil {
		return usageError{err, cmd}
	}
	to, err := contexts.Cluster(toContextFlag, s.toContext, os.Environ())
	if err != nil {
		return usageError{err, cmd}
	}
	if slices.ContainsFunc(to.Brokers, func(b string) bool { return slices.Contains(own.Brokers, b) }) {
		return usagef(cmd, "--%s %s is the cluster that the letters are in: without it they go there, too, each exactly once", toContextFlag, s.toContext)
	}
	a, err := kafka.NewAdmin(kafka.Config{Cluster: to, Logger: warnings(cmd.ErrOrStderr())})
	if err != nil {
		return err
	}
	defer a.Close()
	if err := a.Check(ctx, true); err != nil {
		return fmt.Errorf("context %s: %w", s.toContext, err)
	}
	s.options.ToCluster = &to
	name := s.options.To
	if name == "" && s.topic == "" {
		name = messaging.RedriveTopic(s.application, s.consumer)
	}
	if name == "" {
		return nil // each letter says whose it is, and so where it goes
	}
	infos, err := a.Topics(ctx, name)
	if err != nil {
		return fmt.Errorf("context %s: %w", s.toContext, err)
	}
	if _, ok := infos[name]; !ok {
		return fmt.Errorf("context %s: topic %s, which letters would go to: %w", s.toContext, name, kafka.ErrUnknownTopic)
	}
	return nil
}
