package consumer_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/store"
	"github.com/pawlstream/pawl/topic"
)

// clerk does with each message all that a shard can: it joins a stream with a
// table, in batches that are read ahead for, counts, writes directly, keeps what
// expires, and sets a timer. Its tables keep next to nothing at hand.
type clerk struct {
	stream, table topic.Of[string] // the value of the table is the number of its version
	out           topic.Of[note]
}

// note is what the clerk publishes for a message, and again when its timer fires.
type note struct {
	Fired   bool
	Place   string // of the message
	Key     string
	Count   int64 // of the stream's messages of the key, with this one
	Version int64 // of the table's message of the key
}

const expiry = 500 * time.Millisecond

var (
	auditCounts   = store.NewTable("audit-counts", store.String, store.Int64)
	auditVersions = store.NewTable("audit-versions", store.String, store.Int64)
	auditMarks    = store.NewTable("audit-marks", store.String, store.Int64)                     // written directly, by place
	auditHits     = store.NewTable("audit-hits", store.String, store.Int64)                      // the same, by key: at least as many as there are
	auditRecent   = store.NewTable("audit-recent", store.String, store.Int64, store.TTL(expiry)) // by place
	auditTables   = []string{"audit-counts", "audit-versions", "audit-marks", "audit-hits"}      // that hold something in the end
	clerkOutputs  = func(n note) string { return n.Key }
)

func newClerk(prefix string) *clerk {
	set := topic.Set(prefix + "desk")
	return &clerk{
		stream: topic.String(prefix+"stream").With(set, topic.Partitions(witnessPartitions)),
		table:  topic.String(prefix+"table").With(set, topic.Partitions(witnessPartitions)),
		out:    topic.JSON(prefix+"notes", topic.KeyedBy(clerkOutputs)).With(topic.Partitions(2)),
	}
}

func (c *clerk) Topics() []*topic.Description {
	return []*topic.Description{c.stream.Description, c.table.Description}
}
func (c *clerk) Outputs() []*topic.Description { return []*topic.Description{c.out.Description} }

func (c *clerk) InitOptions(o *store.Options) { o.TableCache = 1 << 10 }

func (c *clerk) Prefetch(es []topic.Envelope, s consumer.Shard) error {
	var keys, places []string
	for _, e := range es {
		keys = append(keys, string(e.Key))
		places = append(places, fmt.Sprintf("%d/%d", e.Partition, e.Offset))
	}
	for _, read := range []struct {
		table *store.Table[string, int64]
		keys  []string
	}{{auditCounts, keys}, {auditVersions, keys}, {auditMarks, places}, {auditHits, keys}, {auditRecent, places}} {
		if err := read.table.Prefetch(s.Transaction(), read.keys); err != nil {
			return err
		}
	}
	if len(es)%7 == 0 {
		panic("the clerk is tired of reading")
	}
	return nil
}

func (c *clerk) Consume(topic.Envelope, consumer.Shard, *topic.Publisher) error {
	return fmt.Errorf("a message came by itself, to a consumer of batches")
}

func (c *clerk) ConsumeBatch(es []topic.Envelope, s consumer.Shard, p *topic.Publisher) error {
	for _, e := range es {
		if err := c.consume(e, s, p); err != nil {
			return err
		}
	}
	return nil
}

func (c *clerk) consume(e topic.Envelope, s consumer.Shard, p *topic.Publisher) error {
	tx, key := s.Transaction(), string(e.Key)
	if e.TopicName() == c.table.Name() {
		version, err := strconv.ParseInt(string(e.Value), 10, 64)
		if err != nil {
			return err
		}
		return auditVersions.Put(tx, key, version)
	}
	n := note{Place: fmt.Sprintf("%d/%d", e.Partition, e.Offset), Key: key}
	var err error
	if n.Count, err = auditCounts.Update(tx, key, func(n int64) int64 { return n + 1 }); err != nil {
		return err
	}
	if n.Version, _, err = auditVersions.Get(tx, key); err != nil {
		return err
	}
	if err := auditMarks.In(s.Database()).Put(n.Place, n.Count); err != nil {
		return err
	}
	hits := auditHits.In(s.Database())
	had, _, err := hits.Get(key)
	if err != nil {
		return err
	}
	if err := hits.Put(key, had+1); err != nil {
		return err
	}
	if err := auditRecent.Put(tx, n.Place, 1); err != nil {
		return err
	}
	if err := tx.SetTimer([]byte(n.Place), e.Timestamp.Add(200*time.Millisecond)); err != nil {
		return err
	}
	return c.out.Publish(p, n)
}

func (c *clerk) Fire(key []byte, at time.Time, _ consumer.Shard, p *topic.Publisher) error {
	if early := time.Until(at); early > 0 {
		return fmt.Errorf("fired %v early", early)
	}
	return c.out.Publish(p, note{Fired: true, Place: string(key), Key: string(key)})
}

func (c *clerk) Flush(consumer.Shard, *topic.Publisher) error { return nil }

// Joins, batches, direct writes, timers and tables with a TTL, in processes that
// are killed again and again, some of them with their state: what comes out and
// what is stored is recomputed from what went in. PAWL_SOAK makes it hundreds of
// runs, PAWL_SEED one.
func TestAudit(t *testing.T) {
	seeds := []uint64{1, 2, 3}
	if text := os.Getenv("PAWL_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seeds = []uint64{seed}
	} else if os.Getenv("PAWL_SOAK") != "" {
		first := uint64(time.Now().Unix())
		for i := range uint64(200) {
			seeds = append(seeds, first+i)
		}
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			onBrokers(t, func(t *testing.T, brokers string) { newAudit(t, brokers, seed).run() })
		})
	}
}

type audit struct {
	*stage
	t    *testing.T
	seed uint64
	r    *rand.Rand
	c    *clerk

	sent     map[string]int64 // messages of the stream by key
	versions map[string]int64 // of the table by key
	notes    []note
	reader   *kafka.Reader
}

func newAudit(t *testing.T, brokers string, seed uint64) *audit {
	a := &audit{stage: newStage(t, brokers), t: t, seed: seed, r: rand.New(rand.NewPCG(seed, 0)), sent: make(map[string]int64), versions: make(map[string]int64)}
	a.spec.Clerk = true
	a.c = newClerk(a.spec.Prefix)
	admin := a.admin(t)
	all := []*topic.Description{a.c.stream.Description, a.c.table.Description, a.c.out.Description}
	for _, d := range all {
		if _, err := admin.CreateTopic(t.Context(), kafka.TopicSpec{Name: d.Name(), Partitions: d.Partitions()}); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := admin.DeleteTopics(ctx, a.c.stream.Name(), a.c.table.Name(), a.c.out.Name(), a.changelog()); err != nil {
			t.Log(err)
		}
	})
	var err error
	if a.reader, err = kafka.NewReader(a.config(), kafka.ReaderConfig{Committed: true, Topics: []string{a.c.out.Name()}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.reader.Close)
	for p := range a.c.out.Partitions() {
		a.reader.Consume(a.c.out.Description, int32(p), 0)
	}
	return a
}

func (a *audit) changelog() string {
	return consumer.ChangelogTopic(a.spec.Application, a.spec.Prefix+"desk")
}

func (a *audit) run() {
	specs := []witnessSpec{a.as(a.t, "one"), a.as(a.t, "two")}
	var processes []*process
	for _, s := range specs {
		processes = append(processes, startWitness(a.t, s, ""))
	}
	for range 12 {
		a.feed(150)
		// A kill comes somewhere in the middle of what was fed.
		a.await(len(a.notes) + 1 + a.r.IntN(100))
		i := a.r.IntN(len(specs))
		processes[i].signal(a.t, syscall.SIGKILL)
		if err := processes[i].wait(a.t); !killed(err) {
			a.t.Fatalf("seed %d: process %d ended with %v before it was killed", a.seed, i, err)
		}
		if a.r.IntN(3) == 0 {
			if err := os.RemoveAll(specs[i].Dir); err != nil {
				a.t.Fatal(err)
			}
		}
		processes[i] = startWitness(a.t, specs[i], "")
	}
	total := 0
	for _, n := range a.sent {
		total += int(n)
	}
	a.await(2 * total)
	for _, p := range processes {
		p.drain(a.t)
	}
	a.checkNotes(total)

	// A third process restores everything from the changelog, and sweeps what
	// has expired. It does that as soon as it runs, and then once a minute: so
	// all has to be old enough by then, which takes real time.
	<-time.After(expiry)
	third := a.as(a.t, "three")
	p := startWitness(a.t, third, "")
	p.awaitRunning(a.t, witnessPartitions) // the others may have swept all that there was
	a.awaitSwept(total)
	p.drain(a.t)
	a.checkStores(third)
}

// feed publishes so many messages of the stream, and some of the table.
func (a *audit) feed(n int) {
	a.t.Helper()
	p, err := kafka.NewProducer(a.config())
	if err != nil {
		a.t.Fatal(err)
	}
	defer p.Close()
	var recs []kafka.Record
	for range n {
		key := fmt.Sprintf("k%02d", a.r.IntN(20))
		if a.r.IntN(5) == 0 {
			a.versions[key]++
			recs = append(recs, kafka.Record{Topic: a.c.table.Name(), Partition: -1, Key: []byte(key), Value: strconv.AppendInt(nil, a.versions[key], 10)})
		}
		a.sent[key]++
		recs = append(recs, kafka.Record{Topic: a.c.stream.Name(), Partition: -1, Key: []byte(key), Value: []byte("x")})
	}
	if err := p.Publish(a.t.Context(), recs...); err != nil {
		a.t.Fatal(err)
	}
}

// await reads the committed output until it holds so many notes.
func (a *audit) await(n int) {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(a.t.Context(), processPatience)
	defer cancel()
	var b kafka.Batch
	for len(a.notes) < n {
		b.Reset()
		if err := a.reader.Poll(ctx, 1000, &b); err != nil {
			a.t.Fatalf("seed %d: %d of %d notes have come: %v", a.seed, len(a.notes), n, err)
		}
		for _, e := range b.Envelopes {
			m, ok, err := a.c.out.Message(e)
			if err != nil || !ok {
				a.t.Fatalf("seed %d: output at %d: %v, %v", a.seed, e.Offset, ok, err)
			}
			a.notes = append(a.notes, m)
		}
	}
}

// checkNotes checks that each message of the stream has one note, and its timer
// one, that counts follow each other, and that versions never go back.
func (a *audit) checkNotes(total int) {
	seen, fired := make(map[string]int), make(map[string]int)
	counts, versions := make(map[string]int64), make(map[string]int64)
	for _, n := range a.notes {
		if n.Fired {
			fired[n.Place]++
			continue
		}
		seen[n.Place]++
		if n.Count != counts[n.Key]+1 {
			a.t.Errorf("seed %d: key %s: count %d comes after %d", a.seed, n.Key, n.Count, counts[n.Key])
		}
		if n.Version < versions[n.Key] || n.Version > a.versions[n.Key] {
			a.t.Errorf("seed %d: key %s: joined with version %d after %d, of %d", a.seed, n.Key, n.Version, versions[n.Key], a.versions[n.Key])
		}
		counts[n.Key], versions[n.Key] = n.Count, n.Version
	}
	if len(seen) != total || len(fired) != total || len(a.notes) != 2*total {
		a.t.Errorf("seed %d: %d notes, of %d messages and %d timers, want %d, and each once", a.seed, len(a.notes), len(seen), len(fired), total)
	}
	for key, want := range a.sent {
		if counts[key] != want {
			a.t.Errorf("seed %d: key %s was counted %d times, want %d", a.seed, key, counts[key], want)
		}
	}
}

// awaitSwept reads the changelog until nothing is left in it of what expires,
// of which there was something for each message.
func (a *audit) awaitSwept(total int) {
	a.t.Helper()
	r, err := kafka.NewReader(a.config(), kafka.ReaderConfig{Committed: true, Topics: []string{a.changelog()}})
	if err != nil {
		a.t.Fatal(err)
	}
	defer r.Close()
	d := topic.Bytes(a.changelog()).Description
	for p := range int32(witnessPartitions) {
		r.Consume(d, p, 0)
	}
	ctx, cancel := context.WithTimeout(a.t.Context(), processPatience)
	defer cancel()
	left, ever := make(map[string]bool), make(map[string]bool)
	var b kafka.Batch
	for len(ever) < total || len(left) > 0 {
		b.Reset()
		if err := r.Poll(ctx, 1000, &b); err != nil {
			a.t.Fatalf("seed %d: of %d entries that expire %d are left in the changelog, of %d: %v", a.seed, len(ever), len(left), total, err)
		}
		for _, e := range b.Envelopes {
			key := string(e.Key)
			switch {
			case !bytes.Contains(e.Key, []byte("audit-recent")):
			case e.Value == nil:
				delete(left, key)
				ever[key] = true // compaction may have left this alone
			default:
				left[key], ever[key] = true, true
			}
		}
	}
}

// checkStores checks the databases that a process has restored.
func (a *audit) checkStores(spec witnessSpec) {
	a.t.Helper()
	dirs, err := os.ReadDir(filepath.Join(spec.Dir, spec.Application))
	if err != nil {
		a.t.Fatal(err)
	}
	got := make(map[string]map[string]int64)
	for _, name := range append(auditTables, "audit-recent") {
		got[name] = make(map[string]int64)
	}
	for _, d := range dirs {
		owner, err := store.Open(store.Config{Dir: filepath.Join(spec.Dir, spec.Application, d.Name()), Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
		if err != nil {
			a.t.Fatal(err)
		}
		err = owner.DB().View(func(tx *store.Transaction) error {
			for _, table := range []*store.Table[string, int64]{auditCounts, auditVersions, auditMarks, auditHits, auditRecent} {
				for k, v := range table.All(tx) {
					got[table.Name()][k] = v
				}
			}
			return tx.Err()
		})
		if err != nil {
			a.t.Error(err)
		}
		if at, ok, err := owner.NextTimer(); ok || err != nil {
			a.t.Errorf("seed %d: a timer is left of %v: %v", a.seed, at, err)
		}
		if err := owner.Close(); err != nil {
			a.t.Error(err)
		}
	}
	for key, want := range a.sent {
		if n := got["audit-counts"][key]; n != want {
			a.t.Errorf("seed %d: the stored count of %s is %d, want %d", a.seed, key, n, want)
		}
		if n := got["audit-hits"][key]; n < want {
			a.t.Errorf("seed %d: %s was counted directly %d times, want %d at least", a.seed, key, n, want)
		}
	}
	for key, want := range a.versions {
		if n := got["audit-versions"][key]; n != want {
			a.t.Errorf("seed %d: the stored version of %s is %d, want %d", a.seed, key, n, want)
		}
	}
	for _, n := range a.notes {
		if mark := got["audit-marks"][n.Place]; !n.Fired && mark != n.Count {
			a.t.Errorf("seed %d: the mark of message %s is %d, want %d", a.seed, n.Place, mark, n.Count)
		}
	}
	if left := got["audit-recent"]; len(left) > 0 {
		a.t.Errorf("seed %d: %d entries are left that have expired", a.seed, len(left))
	}
}
