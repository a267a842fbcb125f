package main

import (
	"fmt"
	"os"
	"runtime/pprof"
	"strings"
	"time"

	"github.com/pawlstream/pawl"
	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/store"
	"github.com/pawlstream/pawl/topic"
)

var (
	kept    = store.NewTable("kept", store.String, store.Bytes)
	counted = store.NewTable("counted", store.String, store.Int64)
)

// names are the topics of one program.
type names struct{ application, input, output string }

func namesOf(id string) names { return names{id, id + ".in", id + ".out"} }

// probing begins the keys of messages that are answered.
const probing = "probe-"

// keeper is a program that stores the last value of each key, or how often the
// key has come. It answers probes.
type keeper struct {
	input, output topic.Of[[]byte]
	counts        bool
}

func (k keeper) Topics() []*topic.Description  { return []*topic.Description{k.input.Description} }
func (k keeper) Outputs() []*topic.Description { return []*topic.Description{k.output.Description} }

func (k keeper) Consume(e topic.Envelope, s consumer.Shard, p *topic.Publisher) error {
	key := string(e.Key)
	if strings.HasPrefix(key, probing) {
		return k.output.Publish(p, e.Value, topic.Key(e.Key))
	}
	if !k.counts {
		return kept.Put(s.Transaction(), key, e.Value)
	}
	_, err := counted.Update(s.Transaction(), key, func(n int64) int64 { return n + 1 })
	return err
}

func (keeper) Flush(consumer.Shard, *topic.Publisher) error { return nil }

// runProgram is a process that is measured: it runs a program by its name, with
// pawl.Main, which does not return. It returns false if there is no such program.
func runProgram(program, id string) bool {
	if program != "keep" && program != "count" {
		return false
	}
	if file := os.Getenv(profileVariable); file != "" {
		if err := profileFor(file, profiled); err != nil {
			fmt.Fprintln(os.Stderr, "large:", err)
			os.Exit(1)
		}
	}
	n := namesOf(id)
	os.Args = append([]string{id}, os.Args[3:]...)
	pawl.Main(keeper{topic.Bytes(n.input), topic.Bytes(n.output), program == "count"})
	return true
}

// A process whose CPU is profiled writes the profile to the file that this
// variable names, once so much time has passed.
const (
	profileVariable = "BENCH_LARGE_PROFILE"
	profiled        = 8 * time.Second
)

func profileFor(file string, d time.Duration) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return err
	}
	time.AfterFunc(d, func() {
		pprof.StopCPUProfile()
		if err := f.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "large:", err)
		}
	})
	return nil
}
