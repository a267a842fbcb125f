package broker

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable/blob"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/twmb/franz-go/pkg/kgo"
)

// marked returns a value that says what it is: a number, random bytes, and their
// sum.
func marked(n uint64, size int) []byte {
	v := binary.BigEndian.AppendUint64(nil, n)
	for rng := rand.New(rand.NewPCG(n, 1)); len(v) < size-sha256.Size; {
		v = binary.LittleEndian.AppendUint64(v, rng.Uint64())
	}
	sum := sha256.Sum256(v)
	return append(v, sum[:]...)
}

// readMark returns the number of a value, if the value is whole.
func readMark(v []byte) (n uint64, whole bool) {
	if len(v) < 8+sha256.Size {
		return 0, false
	}
	sum := sha256.Sum256(v[:len(v)-sha256.Size])
	return binary.BigEndian.Uint64(v), bytes.Equal(sum[:], v[len(v)-sha256.Size:])
}

// sizes of values below and above what is read directly.
var valueSizes = []int{100, 2000, directMin - 200, directMin, directMin + 1, 100_000, blockSize, 600_000, blockSizeMax + 3000}

// store fills a partition with values of all sizes, each a batch, which lie in
// files and are not recent.
func (k *kit) store(topic string, values int) {
	k.Helper()
	k.create(topic, 1, "max.message.bytes", "4000000")
	cl := k.client(kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.ProducerBatchMaxBytes(4_000_000), kgo.MaxBufferedRecords(1))
	for i := range values {
		if err := cl.ProduceSync(k.ctx, &kgo.Record{Topic: topic, Value: marked(uint64(i), valueSizes[i%len(valueSizes)])}).FirstErr(); err != nil {
			k.Fatal(err)
		}
	}
	if err := k.db.Flush(); err != nil {
		k.Fatal(err)
	}
	k.restart()
}

// batches reads a partition from the storage, and returns the bytes.
func (k *kit) batches(topic string) []byte {
	k.Helper()
	r := k.look(topic, 0, 0, newBudget(1<<30))
	if err := k.readBatches(k.ctx, r, r.max, true); err != nil {
		k.Fatal(err)
	}
	if got := k.db.Metrics().TableIters; got != 0 {
		k.Errorf("%d iterators of files are open", got)
	}
	all := bytes.Join(r.records.pieces, nil)
	if r.records.size != int64(len(all)) {
		k.Errorf("%d bytes were read, %d counted", len(all), r.records.size)
	}
	r.records.release()
	if got := r.records.from.used(); got != 0 {
		k.Errorf("%d bytes are still taken", got)
	}
	if got := len(k.direct); got != 0 {
		k.Errorf("%d files of values are still open", got)
	}
	return all
}

// each calls fn with every batch of a partition that the storage has put into a
// file of values, and where.
func (k *kit) each(topic string, fn func(number uint64, val pebble.LazyValue, batch []byte)) {
	k.Helper()
	r := k.look(topic, 0, 0, newBudget(1))
	it, err := k.db.NewIter(&pebble.IterOptions{LowerBound: partitionKey(prefixBatch, r.p.id), UpperBound: after(partitionKey(prefixBatch, r.p.id))})
	if err != nil {
		k.Fatal(err)
	}
	for ok := it.First(); ok; ok = it.Next() {
		if val := it.LazyValue(); val.Fetcher != nil && val.Fetcher.BlobFileID != 0 {
			batch, err := it.ValueAndErr()
			if err != nil {
				k.Fatal(err)
			}
			fn(uint64(val.Fetcher.BlobFileID), val, batch)
		}
	}
	if err := it.Close(); err != nil {
		k.Fatal(err)
	}
}

// What is read directly is what the storage library reads, and all that is big
// is read directly: should a release of the library put its files together
// another way, this fails.
func TestValuesReadDirectly(t *testing.T) {
	k := start(t, quiet())
	k.store("t", 3*len(valueSizes))
	got := k.batches("t")
	for range directMax {
		k.direct <- struct{}{}
	}
	r := k.look("t", 0, 0, newBudget(1<<30))
	if err := k.readBatches(k.ctx, r, r.max, true); err != nil {
		t.Fatal(err)
	}
	want := bytes.Join(r.records.pieces, nil)
	r.records.release()
	for range directMax {
		<-k.direct
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%d bytes read directly differ from %d read by the library", len(got), len(want))
	}
	big, from := 0, direct{b: k.Broker}
	defer from.close()
	k.each("t", func(_ uint64, val pebble.LazyValue, batch []byte) {
		to := &blocks{from: newBudget(1)}
		done := from.read(k.ctx, val, to)
		if want := len(batch) >= directMin; done != want {
			t.Errorf("%d bytes are read directly: %t, want %t", len(batch), done, want)
		}
		if done {
			big++
			if !bytes.Equal(to.pieces[0], batch) {
				t.Errorf("%d bytes are not what they are", len(batch))
			}
		}
		to.size = 0
		to.release()
	})
	if big < 3*5 {
		t.Errorf("%d batches were read directly, want at least %d", big, 3*5)
	}
}

// Values that the storage has put into another file since, because much of
// theirs was deleted, are read as they were.
func TestValuesInFilesWrittenAnew(t *testing.T) {
	k := start(t, quiet())
	k.create("gone", 1)
	cl := k.client(kgo.ProducerBatchCompression(kgo.NoCompression()))
	for i := range 20 {
		k.produceTo(cl, "gone", 0, string(marked(uint64(i), 100_000)))
	}
	cl.Close()
	k.store("t", 2*len(valueSizes))
	want := k.batches("t")
	k.deleteTopic("gone")
	k.reclaimNow(k.ctx)
	if err := k.Broker.Close(); err != nil {
		t.Fatal(err)
	}
	// It does so after a while, and if it is much.
	anew := make(chan struct{}, 100)
	o := k.storageOptions()
	o.FS, o.EventListener.BlobFileRewriteEnd = k.config.fs, func(info pebble.BlobFileRewriteInfo) { anew <- struct{}{} }
	policy := o.Experimental.ValueSeparationPolicy()
	policy.RewriteMinimumAge, policy.TargetGarbageRatio = 0, 0.001
	o.Experimental.ValueSeparationPolicy = func() pebble.ValueSeparationPolicy { return policy }
	db, err := pebble.Open(filepath.Join(k.dir, dataDir), o)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Compact(k.ctx, []byte{0}, []byte{0xff}, false); err != nil {
		t.Fatal(err)
	}
	select {
	case <-anew:
	case <-k.ctx.Done():
		t.Fatal("no file of values was written anew")
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	k.open()
	if got := k.batches("t"); !bytes.Equal(got, want) {
		t.Errorf("%d bytes differ from the %d that they were", len(got), len(want))
	}
	// The numbers are still those of the files that they were in at first.
	numbers := make(map[uint64]bool)
	k.each("t", func(number uint64, _ pebble.LazyValue, _ []byte) { numbers[number] = true })
	names, err := k.config.fs.List(filepath.Join(k.dir, dataDir))
	if err != nil {
		t.Fatal(err)
	}
	moved := 0
	for _, name := range names {
		var number uint64
		if _, err := fmt.Sscanf(name, "%d"+blobSuffix, &number); err != nil || numbers[number] {
			continue
		}
		moved++
		if f, err := k.openValueFile(k.ctx, number); !errors.Is(err, errUnexpected) {
			t.Errorf("%s, which was written anew, opened as %v: %v", name, f, err)
		}
	}
	if moved == 0 {
		t.Errorf("none of %v was written anew", names)
	}
}

// Consumers over both kinds of connection that read the same stored batches, in
// other turns, get every one of them whole: no memory is used again before it
// has been sent.
func TestValuesOfManyReaders(t *testing.T) {
	c := quiet()
	c.Listen, c.Memory = "127.0.0.1:0", memoryMin
	k := start(t, c)
	const values = 60
	k.create("t", 4)
	cl := k.client(manual(), kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.ProducerLinger(0))
	for i := range values {
		r := &kgo.Record{Topic: "t", Partition: int32(i % 4), Value: marked(uint64(i), 60_000+i%7*30_000)}
		if err := cl.ProduceSync(k.ctx, r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	k.restart()
	var readers sync.WaitGroup
	for i := range 6 {
		opts := []kgo.Opt{kgo.ConsumeTopics("t"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxPartitionBytes(int32(200_000 + i*150_000))}
		var cl *kgo.Client
		if i%2 == 0 {
			cl = k.client(opts...)
		} else {
			var err error
			if cl, err = kgo.NewClient(append(opts, kgo.SeedBrokers(k.Addr()))...); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(cl.Close)
		}
		readers.Go(func() {
			seen := make(map[uint64]bool)
			for len(seen) < values {
				fs := cl.PollFetches(k.ctx)
				if err := fs.Err(); err != nil {
					t.Errorf("reader %d: %v", i, err)
					return
				}
				fs.EachRecord(func(r *kgo.Record) {
					n, whole := readMark(r.Value)
					if !whole || seen[n] || int32(n%4) != r.Partition || int64(n/4) != r.Offset {
						t.Errorf("reader %d: value %d at %d-%d, whole %t, seen before %t", i, n, r.Partition, r.Offset, whole, seen[n])
					}
					seen[n] = true
				})
			}
		})
	}
	readers.Wait()
	k.restart() // which ends the connections
	if got := k.ahead.used() + k.answers.used(); got != 0 || len(k.direct) != 0 {
		t.Errorf("%d bytes of answers are taken and %d files open with nobody connected", got, len(k.direct))
	}
}

// Whatever happened to a file of values, what is read of it directly is what was
// written, or nothing.
func FuzzValueFile(f *testing.F) {
	k := start(f, quiet())
	k.store("t", len(valueSizes))
	type value struct {
		at    blob.HandleSuffix
		batch []byte
	}
	files := make(map[uint64][]value)
	k.each("t", func(number uint64, val pebble.LazyValue, batch []byte) {
		files[number] = append(files[number], value{blob.DecodeHandleSuffix(val.ValueOrHandle), bytes.Clone(batch)})
	})
	var number uint64
	for n, values := range files {
		if len(values) > len(files[number]) {
			number = n
		}
	}
	name := filepath.Join(k.dir, dataDir, fmt.Sprintf("%06d%s", number, blobSuffix))
	whole := readWhole(f, k.config.fs, name)
	n := uint32(len(whole))
	f.Add(uint32(0), byte(0), uint32(0))         // as it is
	f.Add(uint32(100), byte(1), uint32(0))       // a value
	f.Add(uint32(70_000), byte(0x80), uint32(0)) // another one
	f.Add(n-10, byte(1), uint32(0))              // the end
	f.Add(n-30, byte(1), uint32(0))              // where the index is
	f.Add(n-60, byte(0xff), uint32(0))           // the index
	f.Add(uint32(0), byte(0), uint32(1))         // cut short
	f.Add(uint32(0), byte(0), n/2)
	f.Add(uint32(0), byte(0), n)
	f.Fuzz(func(t *testing.T, at uint32, flip byte, cut uint32) {
		data := bytes.Clone(whole[:n-min(cut, n)])
		if int(at) < len(data) {
			data[at] ^= flip
		}
		fs := vfs.NewMem()
		writeWhole(t, fs, name, data)
		b := &Broker{dir: k.dir, config: Config{fs: fs}}
		v, err := b.openValueFile(t.Context(), number)
		if err != nil {
			if flip == 0 && cut == 0 {
				t.Errorf("the file as it is: %v", err)
			}
			return
		}
		defer v.close()
		for _, val := range files[number] {
			to := &blocks{from: newBudget(1 << 30)}
			err := v.read(t.Context(), val.at, len(val.batch), to)
			if err == nil && !bytes.Equal(to.pieces[0], val.batch) {
				t.Errorf("%d bytes at %v are not what was written", len(val.batch), val.at)
			}
			if err != nil && (len(to.pieces) != 0 || flip == 0 && cut == 0) {
				t.Errorf("%d bytes at %v: %v", len(val.batch), val.at, err)
			}
			to.size = 0
			to.release()
		}
	})
}

func readWhole(t testing.TB, fs vfs.FS, name string) []byte {
	t.Helper()
	f, err := fs.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(f)
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	return data
}

func writeWhole(t testing.TB, fs vfs.FS, name string, data []byte) {
	t.Helper()
	err := fs.MkdirAll(filepath.Dir(name), 0o755)
	if err != nil {
		t.Fatal(err)
	}
	f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}
