package broker

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// annals is what was done to a broker, in order, each step acked before the
// next one: what is left of it after a log lost its tail is a beginning.
type annals struct {
	steps []annal
}

// annal is a message that was written, or an offset that was committed.
type annal struct {
	partition int32
	value     string // empty: an offset
	offset    int64
}

// write fills a directory: files of each kind have something in them.
func (a *annals) write(t *testing.T, rng *rand.Rand) (dir string) {
	t.Helper()
	c := quiet().onDisk()
	c.janitor = func(_ *Broker, stop chan struct{}) { <-stop }
	k := start(t, c)
	k.create("kept", 2)
	var next [2]int64
	for round := range 4 {
		cl := k.client(manual(), kgo.ProducerBatchCompression(kgo.NoCompression()))
		for i := range 40 {
			part := int32(rng.IntN(2))
			v := fmt.Sprintf("%d-%d-%x", part, next[part], rng.Uint64())
			if i%3 == 0 { // it goes into a file of values
				v += strings.Repeat(fmt.Sprintf("%x", rng.Uint64()), 200)
			}
			if round == 2 && i == 20 { // and this one is big, as those of busy producers are
				v += strings.Repeat("x", 450_000) // its key too
			}
			k.produceTo(cl, "kept", part, v)
			a.steps = append(a.steps, annal{part, v, next[part]})
			next[part]++
			if i%5 == 0 {
				if err := k.commitPlain(cl, "g", "kept", part, next[part]); err != nil {
					t.Fatal(err)
				}
				a.steps = append(a.steps, annal{part, "", next[part]})
			}
		}
		cl.Close()
		switch round {
		case 0, 2:
			if err := k.db.Flush(); err != nil {
				t.Fatal(err)
			}
		case 1:
			k.restart()
		}
		// What the last round writes stays in the log.
	}
	if err := k.Broker.Close(); err != nil {
		t.Fatal(err)
	}
	return k.dir
}

// after is what there is after so many steps.
func (a *annals) after(n int) (values [2][]string, offsets [2]int64) {
	offsets = [2]int64{-1, -1}
	for _, s := range a.steps[:n] {
		if s.value != "" {
			values[s.partition] = append(values[s.partition], s.value)
		} else {
			offsets[s.partition] = s.offset
		}
	}
	return values, offsets
}

// judge compares what a broker that opened shows with what was done. A message
// that can't be read is answered by an error; whatever is shown is right.
func (a *annals) judge(k *kit, beginning bool) (unreadable int, err error) {
	k.Helper()
	cl := k.client(manual(), kgo.RequestRetries(0), kgo.RetryTimeout(5*time.Second))
	id, err := k.topicID(cl, "kept")
	if err != nil {
		return 0, fmt.Errorf("the topic: %w", err)
	}
	var got [2]map[int64]string
	var ends, offsets [2]int64
	for part := range int32(2) {
		o, err := k.listOffset(cl, "kept", part, listLatest, false)
		if err != nil {
			return 0, fmt.Errorf("the end of %d: %w", part, err)
		}
		ends[part] = o.Offset
		var n int
		if got[part], n, err = k.readSalvaged(cl, id, part, o.Offset); err != nil {
			return 0, fmt.Errorf("read %d: %w", part, err)
		}
		unreadable += n
		offsets[part] = k.committedOffset(cl, "g", "kept", part)
	}
	steps := len(a.steps)
	if beginning {
		for steps > 0 {
			if values, at := a.after(steps); int64(len(values[0])) == ends[0] && int64(len(values[1])) == ends[1] && at == offsets {
				break
			}
			steps--
		}
	}
	values, at := a.after(steps)
	for part := range int32(2) {
		if int64(len(values[part])) != ends[part] || at[part] != offsets[part] {
			return unreadable, fmt.Errorf("partition %d ends at %d and the group is at %d, want %d and %d, after %d of %d steps", part, ends[part], offsets[part], len(values[part]), at[part], steps, len(a.steps))
		}
		for _, at := range slices.Sorted(maps.Keys(got[part])) {
			if v := got[part][at]; v != values[part][at] {
				return unreadable, fmt.Errorf("partition %d holds %.40q at %d, want %.40q", part, v, at, values[part][at])
			}
		}
		if len(got[part])+unreadable < len(values[part]) {
			return unreadable, fmt.Errorf("partition %d shows %d messages and %d errors, and there are %d", part, len(got[part]), unreadable, len(values[part]))
		}
	}
	return unreadable, nil
}

// readSalvaged reads a partition, and goes on behind what can't be read.
func (k *kit) readSalvaged(cl *kgo.Client, id [16]byte, partition int32, end int64) (values map[int64]string, unreadable int, err error) {
	values = make(map[int64]string)
	for at := int64(0); at < end; {
		req := kmsg.NewPtrFetchRequest()
		req.Version, req.MaxBytes, req.SessionEpoch = 13, 1<<20, -1
		ft := kmsg.NewFetchRequestTopic()
		ft.TopicID = id
		fp := kmsg.NewFetchRequestTopicPartition()
		fp.Partition, fp.FetchOffset, fp.PartitionMaxBytes, fp.CurrentLeaderEpoch = partition, at, 1<<20, -1
		ft.Partitions = append(ft.Partitions, fp)
		req.Topics = append(req.Topics, ft)
		resp, err := cl.SeedBrokers()[0].Request(k.ctx, req)
		if err != nil {
			return nil, 0, fmt.Errorf("fetch at %d: %w", at, err)
		}
		p := resp.(*kmsg.FetchResponse).Topics[0].Partitions[0]
		before := at
		for raw := p.RecordBatches; len(raw) > 0; {
			bt, err := readBatch(raw)
			if err != nil {
				return nil, 0, fmt.Errorf("fetched at %d: %w", at, err)
			}
			if !bt.intact() {
				return nil, 0, fmt.Errorf("fetched at %d: the checksum is wrong", at)
			}
			if err := eachRecord(bt, keepRaw, func(r *recordReader) error {
				var rec kmsg.Record
				if err := rec.ReadFrom(append(kbin.AppendVarint(nil, int32(len(r.raw))), r.raw...)); err != nil {
					return err
				}
				values[r.offset] = string(rec.Value)
				return nil
			}); err != nil {
				return nil, 0, err
			}
			at, raw = bt.last()+1, raw[len(bt.raw):]
		}
		if at > before {
			continue
		}
		if err := kerr.ErrorForCode(p.ErrorCode); !errors.Is(err, kerr.KafkaStorageError) {
			return nil, 0, fmt.Errorf("nothing at %d, and the answer is %v", at, err)
		}
		unreadable++
		at++
	}
	return values, unreadable, nil
}

// A file that is damaged, wherever and however, is a clear error at the start,
// or costs what was in it: what is shown is right, what can't be read is
// answered by an error, all the rest is there, and the broker goes on. Only the
// end of the log can be missing without a word, as after a power cut.
func TestB8DamagedFiles(t *testing.T) {
	s := seed(t)
	rng := rand.New(rand.NewPCG(s, 8))
	var a annals
	dir := a.write(t, rng)
	var names []string
	if err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			name, err = filepath.Rel(dir, name)
			names = append(names, name)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	kinds := make(map[string]bool)
	for _, name := range names {
		kinds[kindOfFile(name)] = true
	}
	for _, want := range []string{"broker.lock", "format", "LOCK", "MANIFEST", "OPTIONS", "marker", ".log", ".sst", ".blob"} {
		if !kinds[want] {
			t.Errorf("there is no file of the kind %s among %q", want, names)
		}
	}
	flips := 3
	if soak(t) > 0 {
		flips = 60
	}
	outcomes := make(map[string]map[string]int)
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		damages := map[string][]byte{"removed": nil, "longer": append(slices.Clone(text), fmt.Sprint(rng.Uint64())...)}
		if len(text) > 0 {
			damages["emptied"] = []byte{}
			for range flips {
				at, bit := rng.IntN(len(text)), rng.IntN(8)
				flipped := slices.Clone(text)
				flipped[at] ^= 1 << bit
				damages[fmt.Sprintf("bit %d of byte %d", bit, at)] = flipped
			}
			for range 1 + flips/3 {
				n := rng.IntN(len(text))
				damages[fmt.Sprintf("cut to %d", n)] = text[:n]
			}
			n := 1 + rng.IntN(len(text))
			noise := slices.Clone(text)
			for i := range noise[len(text)-n:] {
				noise[len(text)-n+i] = byte(rng.Uint32())
			}
			damages[fmt.Sprintf("noise for %d of its last bytes", n)] = noise
		}
		for _, damage := range slices.Sorted(maps.Keys(damages)) {
			outcome := a.damage(t, dir, name, damage, damages[damage], s)
			kind := kindOfFile(name)
			if outcomes[kind] == nil {
				outcomes[kind] = make(map[string]int)
			}
			outcomes[kind][outcome]++
		}
	}
	for kind, n := range outcomes {
		t.Logf("%s: %v", kind, n)
	}
	t.Logf("PAWL_SEED=%d", s)
}

// kindOfFile is what a file's name says of it.
func kindOfFile(name string) string {
	base := filepath.Base(name)
	if kind, _, ok := strings.Cut(base, "."); ok && kind == "marker" {
		return kind
	}
	if kind, _, ok := strings.Cut(base, "-"); ok {
		return kind
	}
	if ext := filepath.Ext(base); ext != ".lock" && ext != "" {
		return ext
	}
	return base
}

// damage opens a copy of a directory in which one file holds another text, nil
// for none, and says what came of it.
func (a *annals) damage(t *testing.T, from, name, damage string, text []byte, s uint64) (outcome string) {
	t.Helper()
	wrong := func(format string, args ...any) string {
		t.Errorf("%s, %s: %s, PAWL_SEED=%d", name, damage, fmt.Sprintf(format, args...), s)
		return "wrong"
	}
	dir := filepath.Join(t.TempDir(), "copy")
	if err := os.CopyFS(dir, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	at := filepath.Join(dir, name)
	if err := os.Remove(at); err != nil {
		t.Fatal(err)
	}
	if text != nil {
		if err := os.WriteFile(at, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := quiet().onDisk()
	b, err := Open(dir, c)
	if err != nil {
		if !strings.Contains(err.Error(), dir) || !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrNewerFormat) {
			return wrong("open: %v, want ErrCorrupt or ErrNewerFormat, and the directory", err)
		}
		return "refused"
	}
	k := &kit{TB: t, Broker: b, ctx: t.Context(), config: c, dir: dir}
	k.current.Store(b)
	outcome = "whole"
	unreadable, err := a.judge(k, kindOfFile(name) == ".log")
	if err != nil {
		outcome = wrong("%v", err)
	} else if unreadable > 0 {
		outcome = "read in part"
	}
	// The broker goes on.
	cl := k.client(manual(), kgo.RetryTimeout(5*time.Second))
	if offset, err := k.produceRaw(cl, "", "kept", 0, rawBatch(0, 0, -1, false, "new")); err != nil {
		outcome = wrong("produce: %v", err)
	} else if id, err := k.topicID(cl, "kept"); err != nil {
		outcome = wrong("%v", err)
	} else if values, _, err := k.readSalvaged(cl, id, 0, offset+1); err != nil || values[offset] != "new" {
		outcome = wrong("what is written then is read as %.40q, %v", values[offset], err)
	}
	if err := b.Err(); err != nil {
		outcome = wrong("the broker stopped: %v", err)
	}
	if err := b.Close(); err != nil {
		outcome = wrong("close: %v", err)
	}
	return outcome
}

// Whatever file or directory can't be used for want of permission while the
// broker opens: it says which and why, or does without, and once it may it opens
// with all that was there.
func TestOpenWithoutPermission(t *testing.T) {
	mem := vfs.NewMem()
	c := quiet()
	c.fs = mem
	k := start(t, c)
	k.create("kept", 1)
	k.produceTo(k.client(manual()), "kept", 0, "a")
	if err := k.Broker.Close(); err != nil {
		t.Fatal(err)
	}
	refused := 0
	for n := int32(1); ; n++ {
		var ops atomic.Int32
		var where string
		c.fs = errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
			switch op.Kind {
			case errorfs.OpFileRead, errorfs.OpFileReadAt, errorfs.OpFileWrite, errorfs.OpFileWriteAt, errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo,
				errorfs.OpFileClose, errorfs.OpFilePreallocate, errorfs.OpFileStat, errorfs.OpFileFlush: // it is open already
				return nil
			}
			if ops.Add(1) == n {
				where = fmt.Sprintf("operation %d, %v of %s", n, op.Kind, op.Path)
				return fs.ErrPermission
			}
			return nil
		}))
		b, err := Open("broker", c)
		if err != nil {
			refused++
			if !strings.Contains(err.Error(), fs.ErrPermission.Error()) || !strings.Contains(err.Error(), "broker") {
				t.Errorf("%s: open: %v, want that it is not permitted", where, err)
			}
		} else if err := b.Close(); err != nil {
			t.Errorf("%s: close: %v", where, err)
		}
		k.config.fs = mem
		k.open()
		if got := k.read("kept", 0, true); !slices.Equal(got, []string{"a"}) {
			t.Errorf("%s: afterwards there is %q", where, got)
		}
		if err := k.Broker.Close(); err != nil {
			t.Errorf("%s: close afterwards: %v", where, err)
		}
		if where == "" {
			break
		}
	}
	if refused < 5 {
		t.Errorf("the broker opens without permission for all but %d operations", refused)
	}
}
