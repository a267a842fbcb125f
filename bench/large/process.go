package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// A program is one application with topics and directories of its own, of which
// one process after the other runs.
type program struct {
	bench
	names
	kind   string // what it does with messages
	shards int
	dir    string
	broker string // HOST:PORT
	within bool   // the broker is in the process

	cmd    *exec.Cmd
	ended  chan error
	logged string // the file that the process logs to
	starts int

	client *kgo.Client // produces, and reads the output
	probes int         // that were sent
}

func (b bench) newProgram(ctx context.Context, kind string, shards int) (_ *program, err error) {
	p := &program{bench: b, names: namesOf(fmt.Sprintf("large%d", time.Now().UnixNano())), kind: kind, shards: shards, broker: b.broker, within: b.broker == ""}
	if p.dir, err = os.MkdirTemp("", "pawl-large-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	if p.within {
		if p.broker, err = freeAddress(); err != nil {
			return nil, err
		}
	}
	quick := func(int) time.Duration { return 2 * time.Millisecond }
	p.client, err = kgo.NewClient(kgo.SeedBrokers(p.broker), kgo.MaxBufferedRecords(200_000), kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.ProducerLinger(0), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.RecordRetries(1<<30), kgo.UnknownTopicRetries(-1),
		kgo.RetryBackoffFn(quick), kgo.RetryTimeout(time.Minute), kgo.MetadataMinAge(10*time.Millisecond), kgo.DisableIdempotentWrite(), kgo.MaxProduceRequestsInflightPerBroker(5),
		kgo.ConsumeTopics(p.output), kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.FetchMaxWait(100*time.Millisecond))
	if err != nil || p.within { // then the process makes its topics
		return p, err
	}
	adm := kadm.NewClient(p.client)
	for _, name := range []string{p.input, p.output} {
		if _, err := adm.CreateTopic(ctx, int32(shards), 1, nil, name); err != nil {
			return nil, fmt.Errorf("create topic %s: %w", name, err)
		}
	}
	return p, nil
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// start starts a process of the program.
func (p *program) start() error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	args := []string{p.kind, p.application, "--application", p.application, "--state-dir", p.stateDir()}
	if p.within {
		args = append(args, "--listen", p.broker, "--partitions", strconv.Itoa(p.shards))
	} else {
		args = append(args, "--brokers", p.broker)
	}
	if p.memory != "" {
		args = append(args, "--memory", p.memory)
	}
	p.starts++
	p.logged = filepath.Join(p.dir, fmt.Sprintf("%d.log", p.starts))
	log, err := os.Create(p.logged)
	if err != nil {
		return err
	}
	defer log.Close()
	p.cmd, p.ended = exec.Command(exe, args...), make(chan error, 1)
	p.cmd.Stderr = log
	if p.profile != "" {
		p.cmd.Env = append(os.Environ(), profileVariable+"="+p.profile)
	}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	go func(cmd *exec.Cmd, ended chan<- error) { ended <- cmd.Wait() }(p.cmd, p.ended)
	return nil
}

func (p *program) stateDir() string { return filepath.Join(p.dir, "state") }

// databases is where the shards' databases are.
func (p *program) databases() string { return filepath.Join(p.stateDir(), p.application) }

// kill ends the process with SIGKILL.
func (p *program) kill() error {
	if p.cmd == nil {
		return nil
	}
	err := p.cmd.Process.Kill()
	<-p.ended
	p.cmd = nil
	return err
}

// close ends the process, and deletes what the program has left.
func (p *program) close() error {
	var errs []error
	if p.client != nil {
		if !p.within {
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			_, err := kadm.NewClient(p.client).DeleteTopics(ctx, p.input, p.output, p.application+"."+p.input+".changelog")
			errs = append(errs, p.kill(), err)
		}
		p.client.Close()
	}
	return errors.Join(append(errs, p.kill(), os.RemoveAll(p.dir))...)
}

// removeState removes the databases, and nothing else.
func (p *program) removeState() error { return os.RemoveAll(p.databases()) }

// stateBytes is what the databases take on disk.
func (p *program) stateBytes() (bytes int64, err error) {
	err = filepath.WalkDir(p.databases(), func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a table file that was compacted meanwhile
		}
		if err == nil {
			bytes += info.Size()
		}
		return err
	})
	return bytes, err
}

// restored reads from the log what the process has restored: how many records,
// and how long that took the shard that took longest.
func (p *program) restored() (records int64, longest time.Duration, err error) {
	f, err := os.Open(p.logged)
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	shards := 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line := lines.Text()
		if !strings.Contains(line, "msg=restored ") {
			continue
		}
		n, err := strconv.ParseInt(attribute(line, "records"), 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("log %q: %w", line, err)
		}
		took, err := time.ParseDuration(attribute(line, "took"))
		if err != nil {
			return 0, 0, fmt.Errorf("log %q: %w", line, err)
		}
		records, longest, shards = records+n, max(longest, took), shards+1
	}
	if shards != p.shards {
		return 0, 0, fmt.Errorf("%d shards say that they have restored, want %d: see %s", shards, p.shards, p.logged)
	}
	return records, longest, nil
}

// attribute returns the value of an attribute in a line of a log.
func attribute(line, name string) string {
	_, rest, _ := strings.Cut(line, " "+name+"=")
	value, _, _ := strings.Cut(rest, " ")
	return value
}

// usage is what the kernel says of a process.
type usage struct {
	cpu       time.Duration // user and system
	now, peak int64         // bytes resident
}

func (p *program) usage() (u usage, err error) {
	pid := strconv.Itoa(p.cmd.Process.Pid)
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return u, err
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	for _, f := range fields[11:13] {
		ticks, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return u, fmt.Errorf("stat %q: %w", stat, err)
		}
		u.cpu += time.Duration(ticks) * 10 * time.Millisecond
	}
	status, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		return u, err
	}
	for line := range strings.Lines(string(status)) {
		for name, into := range map[string]*int64{"VmHWM:": &u.peak, "VmRSS:": &u.now} {
			if rest, ok := strings.CutPrefix(line, name); ok {
				kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
				if err != nil {
					return u, fmt.Errorf("status %q: %w", line, err)
				}
				*into = kb << 10
			}
		}
	}
	return u, nil
}
