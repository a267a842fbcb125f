package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// figures are what one run measured.
type figures struct {
	messages int
	seconds  float64 // from the last sample that showed nothing committed to the first that showed everything
	cpu      float64 // seconds of the client's own, from the start of its process (or of what is measured)
	broker   float64 // seconds of the broker's, meanwhile
	foreign  float64 // cores that neither client nor broker nor this program used
	peak     int64   // bytes resident, at most

	steady  float64 // messages per second of the client's CPU, between 50 and 95 % of the input
	outputs int     // messages that were put out, committed

	latency *percentiles
}

// perCPU returns messages per second of the client's CPU, from start to end.
func (f figures) perCPU() float64 { return float64(f.messages) / f.cpu }

// cores returns how many cores the client used.
func (f figures) cores() float64 { return f.cpu / f.seconds }

func (f figures) String() string {
	s := fmt.Sprintf("%5.1f s; %5.1f CPU seconds, the broker's %5.1f; %4.2f foreign cores; %4d MB", f.seconds, f.cpu, f.broker, f.foreign, f.peak>>20)
	if l := f.latency; l != nil {
		return s + fmt.Sprintf("; p50 %.1f, p99 %.1f, p99.9 %.1f ms", l.p50, l.p99, l.p999)
	}
	return s + fmt.Sprintf("; %.0f messages per CPU second, %.0f steady, %.2f outputs a message", f.perCPU(), f.steady, float64(f.outputs)/float64(f.messages))
}

// sampling is how often a run is looked at.
const sampling = 50 * time.Millisecond

// A run that has stopped going forward is ended, and one that goes slowly, on a
// machine that others use as well, is not.
const (
	startTime   = 2 * time.Minute // for a process to start
	slowestRate = 5_000           // messages a second
)

// throughputTime bounds a run over so many messages.
func throughputTime(messages int) time.Duration {
	return startTime + time.Duration(messages)*time.Second/slowestRate
}

// throughput runs a peer over the whole input once.
func (b bench) throughput(ctx context.Context, w workload, p peer) (f figures, err error) {
	limit := throughputTime(w.input.messages)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not done within %v, which is %v for the start and a second for each %d messages", limit, startTime, slowestRate))
	defer cancel()
	meter, err := b.newMeter()
	if err != nil {
		return f, err
	}
	s, err := b.open(ctx, w, p)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, s.close()) }()

	var c curve
	var n int64
	tick := time.NewTicker(sampling)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-s.ended:
			return f, errors.Join(errors.New("the process ended by itself"), s.end())
		case <-ctx.Done():
			return f, fmt.Errorf("%d of %d messages are committed: %w; it said:\n%s", n, w.input.messages, context.Cause(ctx), s.stderr.text())
		}
		if n, err = s.progress(ctx); err != nil {
			return f, fmt.Errorf("look how far it is, after %d messages: %w", n, errors.Join(err, context.Cause(ctx)))
		}
		u, err := s.usage()
		if err != nil {
			return f, err
		}
		c = append(c, sample{at: time.Now(), messages: n, cpu: u.cpu})
		if n < int64(w.input.messages) {
			continue
		}
		f = figures{messages: w.input.messages, seconds: c.seconds(), cpu: u.cpu.Seconds(), peak: u.peak, steady: c.steady()}
		if err := meter.read(&f, u.cpu); err != nil {
			return f, err
		}
		break
	}
	f.outputs, err = b.validate(ctx, w, s.output)
	return f, err
}

// sample is how far a run was at a time, and what it had cost.
type sample struct {
	at       time.Time
	messages int64
	cpu      time.Duration
}

// curve holds the samples of a run, in order.
type curve []sample

// seconds returns how long consuming took, without the start before it.
func (c curve) seconds() float64 {
	begun := c[0].at
	for _, s := range c {
		if s.messages > 0 {
			break
		}
		begun = s.at
	}
	return c[len(c)-1].at.Sub(begun).Seconds()
}

// steady returns messages per second of CPU between 50 and 95 % of the input,
// or 0 when a sample is missing on the way.
func (c curve) steady() float64 {
	from, to := c.first(50), c.first(95)
	if to.cpu <= from.cpu {
		return 0
	}
	return float64(to.messages-from.messages) / (to.cpu - from.cpu).Seconds()
}

// first returns the first sample at which a percentage of the input was done.
func (c curve) first(percent int64) sample {
	all := c[len(c)-1].messages
	for _, s := range c {
		if s.messages*100 >= all*percent {
			return s
		}
	}
	return c[len(c)-1]
}

// meter measures what the rest of the machine does meanwhile.
type meter struct {
	b                     bench
	begun                 time.Time
	machine, broker, self time.Duration
}

func (b bench) newMeter() (m meter, err error) {
	m = meter{b: b, begun: time.Now()}
	m.machine, m.broker, m.self, err = m.now()
	return m, err
}

func (m meter) now() (machine, broker, self time.Duration, err error) {
	machine, err = machineCPU()
	b, berr := usageOf(m.b.brokerPID)
	s, serr := usageOf(fmt.Sprint(os.Getpid()))
	return machine, b.cpu, s.cpu, errors.Join(err, berr, serr)
}

// read fills in what the broker and others have used since the meter was made,
// while the client used so much.
func (m meter) read(f *figures, client time.Duration) error {
	machine, broker, self, err := m.now()
	f.broker = (broker - m.broker).Seconds()
	foreign := (machine - m.machine) - (broker - m.broker) - (self - m.self) - client
	f.foreign = max(0, foreign.Seconds()/time.Since(m.begun).Seconds())
	return err
}
