package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pawlstream/pawl/broker"
	"github.com/pawlstream/pawl/internal/admin"
	"github.com/pawlstream/pawl/internal/config"
)

func newBackupCommand() *cobra.Command {
	var dir, to string
	var own *ownSettings
	cmd := &cobra.Command{
		Use:   "backup --dir DIR --to DIR",
		Short: "Copy a broker's data, also while it runs",
		Long: `Copies what a broker has on disk at one moment to a directory that is not there
yet. pawl serve starts from the copy as it does from the original.

A broker that runs goes on meanwhile: the process that has the directory makes
the copy. On one disk the copy shares files with the original and is made at
once; for a copy that outlives the disk, copy it on to another.

Each flag has a variable and a key in pawl.yaml: PAWL_DIR and dir for --dir, as
pawl serve has. A flag wins over its variable, and that over the file.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := own.load(os.Environ()); err != nil {
				return err
			}
			switch {
			case dir == "":
				return usagef(cmd, "--dir is not set: name the directory of the broker's data")
			case to == "":
				return usagef(cmd, "--to is not set: name the directory that the copy goes to")
			}
			if err := backup(context.Background(), dir, to); err != nil {
				return err
			}
			if _, err := fmt.Fprintf(cmd.OutOrStdout(), "backed up %s to %s\n", dir, to); err != nil {
				return fmt.Errorf("print the result: %w", err)
			}
			return nil
		},
	}
	own = addOwn(cmd, []config.Setting{
		{Name: "dir", Value: config.Path(&dir, "DIR"), Help: "the directory of the broker's data"},
		{Name: "to", Value: config.Path(&to, "DIR"), Help: "the directory that the copy goes to, which is not there yet"},
	})
	return cmd
}

// brokerLock is in every directory that a broker has had.
const brokerLock = "broker.lock"

// backup copies the data in dir, by the process that has the directory or, if
// none has, by a broker of its own.
func backup(ctx context.Context, dir, to string) error {
	if _, err := os.Stat(filepath.Join(dir, brokerLock)); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("back up %s: there is no broker's data", dir)
	}
	target, err := filepath.Abs(to)
	if err != nil {
		return fmt.Errorf("back up to %s: %w", to, err)
	}
	source, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("back up %s: %w", dir, err)
	}
	if rel, err := filepath.Rel(source, target); err == nil && rel != ".." && !strings.HasPrefix(rel, ".."+string(filepath.Separator)) {
		return fmt.Errorf("back up %s to %s: the copy would be within what is copied: name a directory beside it", dir, to)
	}
	b, err := broker.Open(dir, broker.Config{Logger: slog.New(slog.DiscardHandler)})
	if err == nil {
		return errors.Join(b.Backup(target), b.Close())
	}
	if !errors.Is(err, broker.ErrLocked) {
		return err
	}
	access, accessErr := admin.ReadAccess(dir)
	if accessErr != nil {
		return errors.Join(err, fmt.Errorf("find the admin API of that process: %w", accessErr))
	}
	if err := admin.RequestBackup(ctx, access, target); err != nil {
		return fmt.Errorf("back up %s: %w", dir, err)
	}
	return nil
}
