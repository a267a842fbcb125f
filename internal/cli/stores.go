package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/pawlstream/pawl/examples/filestats"
	"github.com/pawlstream/pawl/internal/changelog"
	"github.com/pawlstream/pawl/store"
)

// readStores opens the stores that stopped processes left in their state
// directories, and returns what is in them. Of two copies of a shard, the one
// whose position is newest is the shard's.
func readStores(log *slog.Logger, application string, stateDirs ...string) (all totals, err error) {
	newest := make(map[string]*store.Owner) // by shard
	next := make(map[string]int64)
	defer func() {
		for _, db := range newest {
			err = errors.Join(err, db.Close())
		}
	}()
	for _, dir := range stateDirs {
		dir := filepath.Join(dir, application)
		shards, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue // a process that never had a shard
		}
		if err != nil {
			return all, fmt.Errorf("look for stores: %w", err)
		}
		for _, shard := range shards {
			if !shard.IsDir() {
				continue
			}
			db, err := store.Open(store.Config{Dir: filepath.Join(dir, shard.Name()), Logger: log})
			if err != nil {
				return all, err
			}
			at, err := changelogNext(db)
			if err != nil {
				return all, errors.Join(fmt.Errorf("store %s: %w", filepath.Join(dir, shard.Name()), err), db.Close())
			}
			older := db
			if before, ok := newest[shard.Name()]; !ok || at > next[shard.Name()] {
				older = before // nil for the first
				newest[shard.Name()], next[shard.Name()] = db, at
			}
			if older == nil {
				continue
			}
			if err := older.Close(); err != nil {
				return all, fmt.Errorf("close store of shard %s: %w", shard.Name(), err)
			}
		}
	}
	all = newTotals()
	for shard, db := range newest {
		if err := db.DB().View(all.addStore); err != nil {
			return all, fmt.Errorf("read store of shard %s: %w", shard, err)
		}
	}
	return all, nil
}

// changelogNext returns the position in the changelog that a store stands at,
// or -1 for one that holds nothing.
func changelogNext(db *store.Owner) (int64, error) {
	if db.Meta() == nil {
		return -1, nil
	}
	p, err := changelog.ParsePosition(db.Meta())
	return p.Next, err
}

// addStore adds what one store holds. What two stores hold is added up, and so
// comes out as wrong: a path or an author belongs to one shard.
func (t totals) addStore(tx *store.Transaction) error {
	for path, v := range filestats.Paths.All(tx) {
		t.paths[path] = t.paths[path].plus(tally(v))
	}
	for author, v := range filestats.Authors.All(tx) {
		t.authors[author] = t.authors[author].plus(tally(v))
	}
	for k, v := range filestats.AuthorDays.All(tx) {
		day := authorDay{k.First, k.Second}
		t.authorDays[day] = t.authorDays[day].plus(tally(v))
	}
	return tx.Err()
}
