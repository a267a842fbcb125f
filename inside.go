package pawl

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/internal/admin"
	"github.com/pawlstream/pawl/internal/changelog"
	"github.com/pawlstream/pawl/store"
)

// insideOf returns what the admin API lets be seen of an application, and done
// with it.
func insideOf(app *consumer.App, level *slog.LevelVar) *admin.Application {
	return &admin.Application{
		Topology: func() admin.Topology { return topologyOf(app.Topology(), app.Status().Paused) },
		State:    func(q admin.StateQuery) (admin.StatePage, error) { return statePage(app, q) },
		Tables:   func(shard string) ([]string, error) { return tablesOf(app, shard) },
		Pause: func(shard string, pause bool) error {
			do := app.Resume
			if pause {
				do = app.Pause
			}
			return withStatus(do(consumer.ShardID(shard)), http.StatusConflict)
		},
		Level: level,
	}
}

// withStatus gives an error the status of an answer: that of a shard that is not
// here, or the given one.
func withStatus(err error, otherwise int) error {
	var known *admin.Error
	switch {
	case err == nil, errors.As(err, &known):
		return err
	case errors.Is(err, consumer.ErrNotHere):
		return admin.Errorf(http.StatusNotFound, "%v", err)
	case errors.Is(err, store.ErrKeyText):
		return admin.Errorf(http.StatusBadRequest, "%v", err)
	}
	return admin.Errorf(otherwise, "%v", err)
}

func topologyOf(from consumer.Topology, paused bool) admin.Topology {
	to := admin.Topology{Paused: paused, Sets: make([]admin.Set, 0, len(from.Sets))}
	for _, s := range from.Sets {
		set := admin.Set{Name: s.Name, Topics: s.Topics, Changelog: s.Changelog, DeadLetters: s.DeadLetters, Outputs: s.Outputs}
		if set.Outputs == nil {
			set.Outputs = []string{}
		}
		to.Sets = append(to.Sets, set)
	}
	return to
}

// tablesOf returns the names of the tables that a shard's state has something in.
func tablesOf(app *consumer.App, shard string) (names []string, err error) {
	err = app.View(consumer.ShardID(shard), func(tx *store.Transaction) error {
		for _, t := range store.Tables() {
			empty := true
			if err := t.ScanText(tx, store.TextRange{}, func(store.Entry) bool { empty = false; return false }); err != nil {
				return err
			}
			if !empty {
				names = append(names, t.Name())
			}
		}
		return nil
	})
	return names, withStatus(err, http.StatusInternalServerError)
}

// pageBytes is about how large a page of state may become.
const pageBytes = 4 << 20

// statePage reads a part of a table, as it is committed, with the position that
// it is of: both are of one snapshot.
func statePage(app *consumer.App, q admin.StateQuery) (admin.StatePage, error) {
	page := admin.StatePage{Shard: q.Shard, Table: q.Table, Entries: []admin.StateEntry{}}
	var table store.AnyTable
	for _, t := range store.Tables() {
		if t.Name() == q.Table {
			table = t
		}
	}
	if table == nil {
		return page, admin.Errorf(http.StatusNotFound, "the program has no table %q", q.Table)
	}
	size := 0
	add := func(e store.Entry) error {
		entry := admin.StateEntry{Text: e.Text}
		var err error
		if entry.Key, err = shown(e.Key); err != nil {
			return fmt.Errorf("key %.60q of table %s: %w", e.Text, q.Table, err)
		}
		if entry.Value, err = shown(e.Val); err != nil {
			return fmt.Errorf("value of key %.60q of table %s: %w", e.Text, q.Table, err)
		}
		size += len(entry.Key) + len(entry.Value)
		page.Entries = append(page.Entries, entry)
		return nil
	}
	err := app.View(consumer.ShardID(q.Shard), func(tx *store.Transaction) (err error) {
		if page.Position, err = positionOf(tx); err != nil {
			return err
		}
		if q.Key != nil {
			e, ok, err := table.GetText(tx, *q.Key)
			if err != nil || !ok {
				return err
			}
			return add(e)
		}
		scanErr := table.ScanText(tx, store.TextRange{From: q.From, To: q.To, Prefix: q.Prefix}, func(e store.Entry) bool {
			if len(page.Entries) == q.Limit || size > pageBytes {
				page.More, page.Next = true, e.Text
				return false
			}
			err = add(e)
			return err == nil
		})
		return errors.Join(err, scanErr)
	})
	return page, withStatus(err, http.StatusInternalServerError)
}

func positionOf(tx *store.Transaction) (admin.Position, error) {
	to := admin.Position{Offsets: []admin.Offset{}}
	meta, err := store.MetaOf(tx)
	if err != nil || meta == nil {
		return to, err
	}
	from, err := changelog.ParsePosition(meta)
	if err != nil {
		return to, err
	}
	to.Changelog = from.Next
	for _, in := range from.Offsets.Inputs {
		to.Offsets = append(to.Offsets, admin.Offset{Topic: in.Topic, Partition: in.Partition, Next: in.Next})
	}
	return to, nil
}

// shown returns what stands for a key or a value in JSON. What JSON has nothing
// for, such as an infinite number, is shown as text.
func shown(v any) (json.RawMessage, error) {
	if m, ok := v.(proto.Message); ok {
		return protojson.Marshal(m)
	}
	b, err := json.Marshal(v)
	var unsupported *json.UnsupportedValueError
	var unknown *json.UnsupportedTypeError
	if errors.As(err, &unsupported) || errors.As(err, &unknown) {
		return json.Marshal(fmt.Sprint(v))
	}
	return b, err
}

// reachable is the address at which others may reach what listens at one: where
// that is every interface of the machine, the machine's name stands for them.
func reachable(address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsUnspecified() {
		return address
	}
	name, err := os.Hostname()
	if err != nil {
		return address
	}
	return net.JoinHostPort(name, port)
}
