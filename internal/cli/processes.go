package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/internal/admin"
	"github.com/pawlstream/pawl/internal/config"
	"github.com/pawlstream/pawl/messaging"
)

// processes are those of an application, as the commands that look inside one
// find them: by the address of an admin port, by a state directory, in which a
// process that runs leaves its address, or by the application's name, from its
// group.
type processes struct {
	o           *operation
	cluster     *clusterSettings
	addresses   []string
	stateDir    string
	application string
	consumer    string         // of the application, where it works on a queue
	token       cluster.Secret // that the processes want to be told
}

// runningProcess is one of them.
type runningProcess struct {
	admin.Client
	Instance   string
	shards     []string // that the group says are there
	partitions int      // likewise, of a queue
	reason     string   // why it can't be asked
}

func newProcesses(cmd *cobra.Command) *processes {
	p := &processes{o: &operation{cmd: cmd}}
	p.cluster = addCluster(cmd, config.Setting{Name: config.AdminToken, Value: config.SecretText(&p.token), Secret: true, Help: "token that the processes want; there is no flag for it"})
	p.o.cluster = func() (cluster.Cluster, error) { return p.cluster.load(os.Environ()) }
	addOutput(cmd, &p.o.output)
	f := cmd.Flags()
	f.StringSliceVar(&p.addresses, "admin", nil, "HOST:PORT of a process's admin port; again for another process")
	f.StringVar(&p.stateDir, "state-dir", "", "state directory of a process on this machine, which says where its admin port is")
	f.StringVar(&p.application, "application", "", "application, whose processes the cluster knows")
	f.StringVar(&p.consumer, "consumer", "", "and its consumer, where it works on a queue")
	completeFlag(cmd, "application", p.o.applicationNames)
	completeFlag(cmd, "consumer", p.o.consumersOf(&p.application))
	return p
}

// run does something with the processes.
func (p *processes) run(do func(ctx context.Context, all []runningProcess) error) error {
	if err := checkOutput(p.o.cmd, p.o.output); err != nil {
		return err
	}
	ways := 0
	for _, name := range []string{"admin", "state-dir", "application"} {
		if p.o.cmd.Flags().Changed(name) {
			ways++
		}
	}
	if ways != 1 {
		return usagef(p.o.cmd, "which processes? Set one of --admin, --state-dir and --application")
	}
	if p.o.cmd.Flags().Changed("consumer") && p.application == "" {
		return usagef(p.o.cmd, "--consumer is one of an application: set --application")
	}
	ctx, stop := untilSignal(p.o.cmd)
	defer stop()
	all, err := p.find(ctx)
	if err == nil {
		err = do(ctx, all)
	}
	return ending(ctx, err)
}

func (p *processes) find(ctx context.Context) ([]runningProcess, error) {
	settings, err := p.cluster.settings(os.Environ(), p.application != "")
	if err != nil {
		return nil, err
	}
	token := string(p.token)
	switch {
	case p.stateDir != "":
		name := filepath.Join(p.stateDir, "admin")
		text, err := os.ReadFile(name)
		if errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("no process has state directory %s now: there is no %s", p.stateDir, name)
		}
		if err != nil {
			return nil, fmt.Errorf("find the process of state directory %s: %w", p.stateDir, err)
		}
		return []runningProcess{{Client: admin.Client{Address: strings.TrimSpace(string(text)), Token: token}}}, nil
	case p.application != "":
		c, err := p.cluster.reach(settings)
		if err != nil {
			return nil, err
		}
		if p.consumer != "" {
			return p.ofQueue(ctx, c, token)
		}
		members, err := consumer.Members(ctx, c, p.application)
		if err != nil {
			return nil, err
		}
		if len(members) == 0 {
			return nil, fmt.Errorf("no process of application %s is in its group now (of one that works on a queue, say the --consumer)", p.application)
		}
		var all []runningProcess
		for _, m := range members {
			one := runningProcess{Client: admin.Client{Address: m.Admin, Token: token}, Instance: m.Instance, reason: m.Reason}
			for _, id := range m.Shards {
				one.shards = append(one.shards, string(id))
			}
			if m.Admin == "" && one.reason == "" {
				one.reason = "it does not say where its admin port is"
			}
			all = append(all, one)
		}
		return all, nil
	}
	var all []runningProcess
	for _, address := range p.addresses {
		if !connectable(address) {
			return nil, usagef(p.o.cmd, "--admin %q: want HOST:PORT", address)
		}
		all = append(all, runningProcess{Client: admin.Client{Address: address, Token: token}})
	}
	return all, nil
}

// ofQueue finds the processes of an application that works on a queue.
func (p *processes) ofQueue(ctx context.Context, c cluster.Cluster, token string) ([]runningProcess, error) {
	members, err := messaging.Members(ctx, c, p.application, p.consumer)
	if err != nil {
		return nil, err
	}
	if len(members) == 0 {
		return nil, fmt.Errorf("no process of consumer %s of application %s is in its group now", printable(p.consumer), printable(p.application))
	}
	var all []runningProcess
	for _, m := range members {
		one := runningProcess{Client: admin.Client{Address: m.Admin, Token: token}, Instance: cmp.Or(m.Instance, m.Admin), partitions: len(m.Partitions), reason: m.Reason}
		if m.Admin == "" && one.reason == "" {
			one.reason = "it does not say where its admin port is"
		}
		all = append(all, one)
	}
	return all, nil
}

// answer is what one process says.
type answer[T any] struct {
	runningProcess
	said T
	err  error
}

// askAll asks all processes at once, in their order. It is an error if none
// answers; of one that does not, it says so.
func askAll[T any](ctx context.Context, p *processes, all []runningProcess, ask func(context.Context, admin.Client) (T, error)) ([]answer[T], error) {
	answers := make([]answer[T], len(all))
	var wg sync.WaitGroup
	for i, one := range all {
		answers[i].runningProcess = one
		if one.reason != "" {
			answers[i].err = errors.New(one.reason)
			continue
		}
		wg.Go(func() { answers[i].said, answers[i].err = ask(ctx, one.Client) })
	}
	wg.Wait()
	var errs []error
	for _, a := range answers {
		if a.err != nil {
			errs = append(errs, fmt.Errorf("process %s: %w", printable(cmp.Or(a.Instance, a.Address)), a.err))
		}
	}
	if len(errs) == len(all) {
		return nil, errors.Join(errs...)
	}
	for _, err := range errs {
		fmt.Fprintf(p.o.cmd.ErrOrStderr(), "pawl: %s\n", printable(err.Error()))
	}
	return answers, nil
}

// shardRow is a shard with the process that has it.
type shardRow struct {
	admin.Shard
	Owner string `json:"owner"` // the instance, or the address
}

// shardRows returns every shard that a process has, or is said to have.
func (p *processes) shardRows(ctx context.Context, all []runningProcess) ([]shardRow, error) {
	type said struct {
		app    admin.App
		shards []admin.Shard
	}
	answers, err := askAll(ctx, p, all, func(ctx context.Context, c admin.Client) (s said, err error) {
		if s.app, err = c.App(ctx); err != nil {
			return s, err
		}
		if s.app.Queue != nil {
			return s, errors.New("it works on a queue, and has no shards: see pawl app describe")
		}
		s.shards, err = c.Shards(ctx)
		return s, err
	})
	if err != nil {
		return nil, err
	}
	rows := []shardRow{}
	for _, a := range answers {
		for _, s := range a.said.shards {
			rows = append(rows, shardRow{s, cmp.Or(a.said.app.Instance, a.Address)})
		}
		if a.err != nil {
			for _, id := range a.shards {
				rows = append(rows, shardRow{admin.Shard{ID: id, Phase: "unknown", Reason: a.err.Error(), Offsets: []admin.Offset{}}, cmp.Or(a.Instance, a.Address)})
			}
		}
	}
	slices.SortStableFunc(rows, func(x, y shardRow) int { return cmp.Or(cmp.Compare(x.ID, y.ID), cmp.Compare(x.Owner, y.Owner)) })
	return rows, nil
}

// owner returns the process that runs a shard.
func (p *processes) owner(ctx context.Context, all []runningProcess, id string) (runningProcess, error) {
	answers, err := askAll(ctx, p, all, func(ctx context.Context, c admin.Client) (bool, error) {
		_, err := c.Shard(ctx, id)
		var failed *admin.Error
		if errors.As(err, &failed) && failed.Status == 404 {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		return runningProcess{}, err
	}
	for _, a := range answers {
		if a.said {
			return a.runningProcess, nil
		}
	}
	return runningProcess{}, fmt.Errorf("no process that answers has shard %s", printable(id))
}
