package broker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/pawlstream/pawl/cluster"
)

// Broker is a running broker. Its methods are safe for concurrent use.
type Broker struct {
	dir           string
	config        Config
	settings      settings // the broker's own
	id            string   // of the cluster that it is all of
	lock          *lock
	disk          *disk
	db            *pebble.DB
	writer        *writer
	requests      *budget       // bytes of requests in flight from outside
	smallRequests *budget       // and of small ones
	ownRequests   *budget       // and from this process
	answers       *budget       // bytes of answers in flight
	ahead         *budget       // and of what was read before it was asked for
	direct        chan struct{} // as many as there are files open beside the storage's
	sasl          *authenticator
	files         openFiles
	inside        *pipeListener
	outside       net.Listener // nil unless it listens
	address       string       // that clients from outside are told
	latency       latencies
	damagedFiles  sync.Map // that were logged, by path

	ctx    context.Context // ends when the broker closes or dies
	cancel context.CancelFunc
	dead   chan struct{}  // closed by fail
	why    error          // the broker died; set before dead is closed
	wg     sync.WaitGroup // all goroutines but the writer's

	// closeOnce makes one Close do the work and the others wait for it.
	closeOnce sync.Once
	closeErr  error

	// mu guards the state. It is held for decisions only, never across I/O.
	mu struct {
		sync.Mutex
		closed       bool
		rounds       []*round
		lastRound    *round // that anything is staged in; nil if all is on disk
		topicRound   *round // that a topic is staged in: reads of other things don't wait for a disk that is stuck
		groupRound   *round // that a group or its offsets are staged in
		topics       map[string]*topic
		topicIDs     map[[16]byte]*topic
		partitions   map[uint32]*partition
		nextNumber   uint32 // of a partition
		producers    producerIDs
		transactions map[string]*transaction
		byProducer   map[int64]*transaction
		groups       map[string]*group
		connections  map[*connection]struct{}
		outside      int64 // of them, from outside the process
		refused      int64 // for want of room
		refusedAt    time.Time
		recents      recents
		reclaim      map[uint32]struct{} // partitions whose data were deleted, and are on disk still
	}
}

// inMemory is what clients in the process call the broker.
const inMemory = "in-process:9092"

// nodeID is the broker's number. There is only one.
const nodeID = 1

// Open starts the broker that has its data in dir, which is made if it isn't
// there. Nothing in the directory is touched unless the broker has it alone.
func Open(dir string, c Config) (*Broker, error) {
	c = c.withDefaults()
	if dir == "" {
		return nil, errors.New("open broker: no directory")
	}
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("open broker: %w", err)
	}
	b, err := open(dir, c)
	if err != nil {
		return nil, fmt.Errorf("open broker %s: %w", dir, err)
	}
	return b, nil
}

func open(dir string, c Config) (_ *Broker, err error) {
	b := &Broker{dir: dir, config: c, dead: make(chan struct{}), direct: make(chan struct{}, directMax)}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	if b.settings, err = newSettings(c.Settings); err != nil {
		return nil, err
	}
	b.files = shareFiles(openFilesLimit())
	b.disk = newDisk(c.fs, b.diskFull)
	if b.lock, err = takeLock(c.fs, dir); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			b.cancel()
			err = errors.Join(err, b.lock.release())
		}
	}()
	if err := checkFormat(c.fs, dir); err != nil {
		return nil, err
	}
	if b.db, err = pebble.Open(filepath.Join(dir, dataDir), b.storageOptions()); err != nil {
		return nil, storageError(err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.closeStorage())
		}
	}()
	if err := b.Err(); err != nil {
		return nil, err // the storage can't say so itself
	}
	if err := b.checkBlobs(); err != nil {
		return nil, err
	}
	b.requests, b.smallRequests, b.ownRequests = newBudget(c.Memory/16), newBudget(c.Memory/16), newBudget(c.Memory/8)
	b.answers, b.ahead = newBudget(c.Memory/8), newBudget(c.Memory/16)
	b.mu.recents.max = c.Memory / 16
	b.sasl = newAuthenticator(c.Users)
	b.mu.topics = make(map[string]*topic)
	b.mu.topicIDs = make(map[[16]byte]*topic)
	b.mu.partitions = make(map[uint32]*partition)
	b.mu.transactions = make(map[string]*transaction)
	b.mu.byProducer = make(map[int64]*transaction)
	b.mu.groups = make(map[string]*group)
	b.mu.connections = make(map[*connection]struct{})
	b.mu.reclaim = make(map[uint32]struct{})
	if err := b.load(); err != nil {
		return nil, err
	}
	if c.Listen != "" {
		if err := b.listen(); err != nil {
			return nil, err
		}
	}
	b.inside = newPipeListener()
	b.writer = newWriter(b)
	go b.writer.run()
	go b.writer.sync()
	b.resume()
	b.wg.Go(func() { b.accept(b.inside, true) })
	if b.outside != nil {
		b.wg.Go(func() { b.accept(b.outside, false) })
	}
	stop := make(chan struct{})
	context.AfterFunc(b.ctx, func() { close(stop) })
	b.wg.Go(func() { c.janitor(b, stop) })
	return b, nil
}

// Cluster says how to reach the broker from this process: over an in-memory
// connection, without TLS or a password.
func (b *Broker) Cluster() cluster.Cluster {
	return cluster.Cluster{
		Brokers:   []string{inMemory},
		OneBroker: true,
		Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return b.inside.dial(ctx)
		},
	}
}

// Addr is the address that clients from outside the process are told, or empty
// if the broker doesn't listen.
func (b *Broker) Addr() string { return b.address }

// ListenAddr is the address that the broker listens on, or empty.
func (b *Broker) ListenAddr() string {
	if b.outside == nil {
		return ""
	}
	return b.outside.Addr().String()
}

// Dir is where the broker has its data.
func (b *Broker) Dir() string { return b.dir }

// Done is closed when the broker has stopped by itself, which Err explains.
func (b *Broker) Done() <-chan struct{} { return b.dead }

// Err is why the broker stopped by itself, ErrClosed after Close, or nil.
func (b *Broker) Err() error {
	select {
	case <-b.dead:
		return b.why
	default:
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.closed {
		return ErrClosed
	}
	return nil
}

// enter keeps Close from closing the storage until leave.
func (b *Broker) enter() (leave func(), err error) {
	if err := b.Err(); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.closed {
		return nil, ErrClosed
	}
	b.wg.Add(1)
	return b.wg.Done, nil
}

// fail stops the broker: nothing that is not on disk by now will be, and
// nothing is answered any more. It may be called from anywhere, also with the
// lock held by another.
func (b *Broker) fail(err error) {
	first := false
	b.disk.kill(func() {
		first, b.why = true, err
		close(b.dead)
	})
	if first {
		b.config.Logger.Error("broker stops", "dir", b.dir, "error", err)
		b.cancel()
	}
}

// Close ends all connections, puts on disk what was staged, and gives the
// directory back.
func (b *Broker) Close() error {
	b.closeOnce.Do(func() { b.closeErr = b.close() })
	return b.closeErr
}

func (b *Broker) close() error {
	var errs []error
	b.mu.Lock()
	b.mu.closed = true
	b.mu.Unlock()
	b.cancel()
	b.inside.close()
	if b.outside != nil {
		errs = append(errs, b.outside.Close())
	}
	b.mu.Lock()
	conns := make([]*connection, 0, len(b.mu.connections))
	for c := range b.mu.connections {
		conns = append(conns, c)
	}
	b.mu.Unlock()
	for _, c := range conns {
		c.close()
	}
	b.wg.Wait()
	// What is staged still waits for the disk; with no space there it would
	// wait for ever.
	b.disk.interrupt(closeWait)
	close(b.writer.closing)
	<-b.writer.ended
	select {
	case <-b.dead:
		errs = append(errs, b.why)
	default:
	}
	errs = append(errs, b.closeStorage())
	errs = append(errs, b.lock.release())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close broker %s: %w", b.dir, err)
	}
	return nil
}

// closeStorage closes the storage, of which there is nothing to be heard if it
// has failed: the library may never come back from a fatal error, and has
// nothing to write any more.
func (b *Broker) closeStorage() error {
	select {
	case <-b.dead:
	default:
		if err := b.db.Close(); err != nil {
			return fmt.Errorf("close the storage: %w", err)
		}
		return nil
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer func() { _ = recover() }() // it gives up by a panic when its files are gone
		_ = b.db.Close()
	}()
	select {
	case <-ended:
	case <-time.After(closeWait):
	}
	return nil
}

// closeWait is how long Close waits for a disk that takes nothing.
const closeWait = 10 * time.Second

func randomID() (id [16]byte) {
	_, _ = rand.Read(id[:]) // it never fails
	return id
}
