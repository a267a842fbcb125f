package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

// peer starts one side's program, which consumes input and publishes to output.
type peer func(application, input, output, dir string) (*process, progress, error)

// progress returns how many messages of the input are committed, together with
// their output and their state.
type progress func(context.Context) (int64, error)

// streamsPeer is Kafka Streams.
func (b bench) streamsPeer(w workload) peer {
	return func(application, input, output, dir string) (*process, progress, error) {
		settings := maps.Clone(w.streams.properties)
		if settings == nil {
			settings = make(map[string]string)
		}
		maps.Copy(settings, map[string]string{
			"application.id": application, "bootstrap.servers": b.broker, "state.dir": filepath.Join(dir, "state"),
			"processing.guarantee": "exactly_once_v2", "num.stream.threads": strconv.Itoa(streamsThreads),
			"replication.factor": "1", "consumer.auto.offset.reset": "earliest",
		})
		file := filepath.Join(dir, "streams.properties")
		if err := os.WriteFile(file, properties(settings), 0o600); err != nil {
			return nil, nil, err
		}
		java, err := exec.LookPath("java")
		if err != nil {
			return nil, nil, err
		}
		args := slices.Concat([]string{"-Xms" + b.heap, "-Xmx" + b.heap}, w.streams.java,
			[]string{"-cp", b.jars + "/classes:" + b.jars + "/lib/*", "io.pawlstream.bench.Peer", w.program, input, output, file})
		p, err := start(io.Discard, java, args...)
		if err != nil {
			return nil, nil, err
		}
		// The group's offsets are committed with the output and the changes of
		// state, in one transaction.
		cl, err := b.client()
		if err != nil {
			return nil, nil, errors.Join(err, p.stop())
		}
		adm := kadm.NewClient(cl)
		context.AfterFunc(p.context(), cl.Close)
		known := int64(0)
		return p, func(ctx context.Context) (int64, error) {
			offsets, err := adm.FetchOffsets(ctx, application)
			if err == nil {
				err = offsets.Error()
			}
			switch {
			case err == nil:
				known = 0
				for _, o := range offsets[input] {
					known += max(0, o.At)
				}
			case !kerr.IsRetriable(err) && !errors.Is(err, kerr.GroupIDNotFound): // those say: not yet
				return 0, err
			}
			return known, nil
		}, nil
	}
}

// streamsThreads was the best number on two cores, or within the noise of it.
const streamsThreads = 2

// properties writes settings as a file of Java properties.
func properties(settings map[string]string) []byte {
	var out []byte
	escape := strings.NewReplacer(`\`, `\\`, "\n", `\n`, ":", `\:`, "=", `\=`, "#", `\#`, "!", `\!`, " ", `\ `)
	for _, k := range slices.Sorted(maps.Keys(settings)) {
		out = fmt.Appendf(out, "%s=%s\n", escape.Replace(k), escape.Replace(settings[k]))
	}
	return out
}

// pawlPeer is Pawl, in a process of this program.
func (b bench) pawlPeer(w workload, v variant) peer {
	return func(application, input, output, dir string) (*process, progress, error) {
		exe, err := os.Executable()
		if err != nil {
			return nil, nil, err
		}
		in, out := io.Pipe()
		p, err := start(out, exe, pawlRole, "-broker", b.broker, "-program", w.program, "-application", application, "-input", input, "-output", output,
			"-state-dir", filepath.Join(dir, "state"), "-transaction-messages", strconv.Itoa(v.transactionMessages))
		if err != nil {
			return nil, nil, err
		}
		// It says itself how far it is: the offsets that it commits to the
		// group are only advice, once a second.
		var committed atomic.Int64
		var failed firstError
		context.AfterFunc(p.context(), func() { out.Close() })
		go func() { // until the process ends
			lines := bufio.NewScanner(in)
			for lines.Scan() {
				n, err := strconv.ParseInt(lines.Text(), 10, 64)
				failed.note(err)
				committed.Store(n)
			}
			failed.note(lines.Err())
			failed.note(in.Close())
		}()
		return p, func(context.Context) (int64, error) { return committed.Load(), failed.err() }, nil
	}
}

// context returns one that ends with the process.
func (p *process) context() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-p.ended
		cancel()
	}()
	return ctx
}

// session is a peer that runs, with topics and a directory of its own.
type session struct {
	*process
	progress

	application, input, output string

	dir string
	adm *kadm.Client
}

// open makes the topics that are the run's own, and starts the peer.
func (b bench) open(ctx context.Context, w workload, p peer) (s *session, err error) {
	cl, err := b.client()
	if err != nil {
		return nil, err
	}
	application := fmt.Sprintf("peers-%d", time.Now().UnixNano())
	s = &session{application: application, input: w.input.topic(), output: application + ".out", adm: kadm.NewClient(cl)}
	own := []string{s.output}
	if w.rate > 0 {
		s.input = application + ".in"
		own = append(own, s.input)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if s.dir, err = os.MkdirTemp("", "pawl-peers-"); err != nil {
		return nil, err
	}
	for _, name := range own {
		if err := createTopic(ctx, s.adm, name); err != nil {
			return nil, err
		}
	}
	s.process, s.progress, err = p(s.application, s.input, s.output, s.dir)
	return s, err
}

// close ends what open began, and deletes what it left, on the broker too.
func (s *session) close() error {
	var errs []error
	if s.process != nil {
		errs = append(errs, s.stop())
	}
	if s.dir != "" {
		errs = append(errs, os.RemoveAll(s.dir))
	}
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	topics, err := s.adm.ListTopics(ctx)
	errs = append(errs, err)
	var mine []string
	for _, name := range topics.Names() {
		if strings.HasPrefix(name, s.application) {
			mine = append(mine, name)
		}
	}
	if len(mine) > 0 {
		_, err = s.adm.DeleteTopics(ctx, mine...)
		errs = append(errs, err)
	}
	s.adm.Close()
	return errors.Join(errs...)
}
