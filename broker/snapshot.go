package broker

import (
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
)

// latencies are counters of what the broker does.
type latencies struct {
	requests atomic.Int64
	stalls   atomic.Int64
	low      atomic.Bool // the disk has too little room
}

// Snapshot is what a broker holds at a moment.
type Snapshot struct {
	Dir          string        `json:"dir"`
	Listen       string        `json:"listen,omitempty"`
	Advertised   string        `json:"advertised,omitempty"`
	ClusterID    string        `json:"cluster_id"`
	Connections  int           `json:"connections"`
	Refused      int64         `json:"refused"` // connections, for there were too many
	Requests     int64         `json:"requests"`
	DiskBytes    int64         `json:"disk_bytes"`
	DiskFull     bool          `json:"disk_full"`
	Stalls       int64         `json:"stalls"`
	Topics       []Topic       `json:"topics"`
	Groups       []Group       `json:"groups"`
	Transactions []Transaction `json:"transactions"`
}

// Topic is a topic in a Snapshot.
type Topic struct {
	Name       string            `json:"name"`
	ID         string            `json:"id"`
	Settings   map[string]string `json:"settings,omitempty"` // its own
	Bytes      int64             `json:"bytes"`
	Partitions []Partition       `json:"partitions"`
}

// Partition is a partition in a Snapshot.
type Partition struct {
	Number int32 `json:"number"`
	Start  int64 `json:"start"`  // the first offset
	Stable int64 `json:"stable"` // up to where committed messages can be read
	End    int64 `json:"end"`    // up to where messages can be read
	Bytes  int64 `json:"bytes"`

	// Unreadable is where damaged data kept somebody from reading: the last
	// offset of each such batch, a thousand at most.
	Unreadable []int64 `json:"unreadable,omitempty"`
}

// Group is a group in a Snapshot.
type Group struct {
	Name       string   `json:"name"`
	State      string   `json:"state"`
	Protocol   string   `json:"protocol,omitempty"`
	Generation int32    `json:"generation"`
	Members    []Member `json:"members"`
	Offsets    []Offset `json:"offsets"`
}

// Member is a member of a Group.
type Member struct {
	ID       string `json:"id"`
	Instance string `json:"instance,omitempty"`
	ClientID string `json:"client_id"`
	Host     string `json:"host"`
}

// Offset is a committed offset of a Group.
type Offset struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
	Lag       int64  `json:"lag"` // to the end; -1 if there is no such partition
}

// Transaction is a transactional ID in a Snapshot.
type Transaction struct {
	ID             string  `json:"id"`
	State          string  `json:"state"`
	ProducerID     int64   `json:"producer_id"`
	Epoch          int16   `json:"epoch"`
	TimeoutSeconds float64 `json:"timeout_seconds"`
	Partitions     int     `json:"partitions"`
	AgeSeconds     float64 `json:"age_seconds"` // of one that is going on
}

// Snapshot says what the broker holds.
func (b *Broker) Snapshot() Snapshot {
	s := Snapshot{
		Dir: b.dir, Listen: b.ListenAddr(), Advertised: b.address, ClusterID: b.id,
		Requests: b.latency.requests.Load(), DiskFull: b.outOfSpace(), Stalls: b.latency.stalls.Load(),
		Topics: []Topic{}, Groups: []Group{}, Transactions: []Transaction{},
	}
	at := now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.closed || b.ctx.Err() != nil {
		return s
	}
	s.DiskBytes = int64(b.db.Metrics().DiskSpaceUsage())
	s.Connections, s.Refused = len(b.mu.connections), b.mu.refused
	for _, name := range slices.Sorted(maps.Keys(b.mu.topics)) {
		t := b.mu.topics[name]
		st := Topic{Name: name, ID: base64.RawURLEncoding.EncodeToString(t.id[:]), Settings: maps.Clone(t.settings)}
		for _, p := range t.partitions {
			sp := Partition{Number: p.number, Start: p.visible.start, Stable: p.visible.stable, End: p.visible.high, Bytes: p.bytes(), Unreadable: p.unreadableLocked()}
			st.Bytes += sp.Bytes
			st.Partitions = append(st.Partitions, sp)
		}
		s.Topics = append(s.Topics, st)
	}
	for _, g := range sortedGroups(b.mu.groups) {
		s.Groups = append(s.Groups, b.describeLocked(g))
	}
	for _, id := range slices.Sorted(maps.Keys(b.mu.transactions)) {
		x := b.mu.transactions[id]
		sx := Transaction{ID: id, State: x.state.String(), ProducerID: x.producer, Epoch: x.epoch, TimeoutSeconds: float64(x.timeout) / 1000, Partitions: len(x.partitions)}
		if x.state == stateOngoing {
			sx.AgeSeconds = float64(at-x.started) / 1000
		}
		s.Transactions = append(s.Transactions, sx)
	}
	return s
}

func (b *Broker) describeLocked(g *group) Group {
	sg := Group{Name: g.id, State: g.state.String(), Protocol: g.protocol, Generation: g.generation, Members: []Member{}, Offsets: []Offset{}}
	for _, id := range g.order {
		m := g.members[id]
		sm := Member{ID: m.id, ClientID: m.clientID, Host: m.host}
		if m.instance != nil {
			sm.Instance = *m.instance
		}
		sg.Members = append(sg.Members, sm)
	}
	of := slices.SortedFunc(maps.Keys(g.offsets), func(a, b offsetOf) int {
		if c := strings.Compare(a.topic, b.topic); c != 0 {
			return c
		}
		return int(a.partition - b.partition)
	})
	for _, o := range of {
		so := Offset{Topic: o.topic, Partition: o.partition, Offset: g.offsets[o].offset, Lag: -1}
		if p := b.partitionLocked(o.topic, o.partition); p != nil {
			so.Lag = max(0, p.visible.high-so.Offset)
		}
		sg.Offsets = append(sg.Offsets, so)
	}
	return sg
}

// Backup copies what is on disk at this moment to a directory that is not there
// yet, from which Open starts a broker. The broker goes on meanwhile. The copy
// shares files with the original where the disk allows it, so that both are on
// it until either is deleted.
func (b *Broker) Backup(dir string) error {
	if err := b.backup(dir); err != nil {
		return fmt.Errorf("back up broker %s to %s: %w", b.dir, dir, err)
	}
	return nil
}

func (b *Broker) backup(dir string) (err error) {
	leave, err := b.enter()
	if err != nil {
		return err
	}
	defer leave()
	fs := b.config.fs
	if _, err := fs.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		return errors.Join(errors.New("it is there already"), err)
	}
	partial := dir + ".partial"
	if err := fs.RemoveAll(partial); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, fs.RemoveAll(partial))
		}
	}()
	if err := fs.MkdirAll(partial, 0o755); err != nil {
		return err
	}
	if err := b.db.Checkpoint(filepath.Join(partial, dataDir), pebble.WithFlushedWAL()); err != nil {
		return err
	}
	if err := writeFormat(fs, partial); err != nil {
		return err
	}
	if err := fs.Rename(partial, dir); err != nil {
		return err
	}
	return syncDir(fs, filepath.Dir(dir))
}
