package store_test

import (
	"fmt"
	"log"
	"os"

	"github.com/pawlstream/pawl/store"
)

// Made once for the program: a name, and how its keys and values are stored.
var words = store.NewTable("words", store.String, store.Int64)

func Example() {
	dir, err := os.MkdirTemp("", "shard")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	shard, err := store.Open(store.Config{Dir: dir})
	if err != nil {
		log.Fatal(err)
	}
	defer shard.Close()

	tx := shard.Transaction()
	for _, w := range []string{"to", "be", "or", "not", "to", "be"} {
		if _, err := words.Update(tx, w, func(n int64) int64 { return n + 1 }); err != nil {
			log.Fatal(err)
		}
	}
	for w, c := range words.Changes(tx) {
		fmt.Println(w, c.New)
	}

	// What a consumer does when the shard commits: the changes go to the
	// changelog, and once they are committed there, to the database.
	changes, err := shard.Seal()
	if err != nil {
		log.Fatal(err)
	}
	if err := shard.Apply([]byte("the position")); err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(changes), "changes at", string(shard.Meta()))
	// Output:
	// be 2
	// not 1
	// or 1
	// to 2
	// 4 changes at the position
}

func ExampleDB_View() {
	dir, err := os.MkdirTemp("", "shard")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	shard, err := store.Open(store.Config{Dir: dir})
	if err != nil {
		log.Fatal(err)
	}
	defer shard.Close()

	if err := words.Put(shard.Transaction(), "uncommitted", 1); err != nil {
		log.Fatal(err)
	}
	// A query, from any goroutine, sees what is committed.
	err = shard.DB().View(func(tx *store.Transaction) error {
		_, ok, err := words.Get(tx, "uncommitted")
		fmt.Println(ok)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: false
}

// The visits of a user on a day: keys sort by user, then by day.
var visits = store.NewTable("visits", store.PairOf(store.String, store.Int64), store.Int64)

func ExamplePairOf() {
	dir, err := os.MkdirTemp("", "shard")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	shard, err := store.Open(store.Config{Dir: dir})
	if err != nil {
		log.Fatal(err)
	}
	defer shard.Close()

	type key = store.Pair[string, int64]
	tx := shard.Transaction()
	for _, k := range []key{{"bob", 1}, {"ann", 30}, {"ann", 4}, {"ann", 5}} {
		if err := visits.Put(tx, k, 1); err != nil {
			log.Fatal(err)
		}
	}
	for k := range visits.Range(tx, key{"ann", 0}, key{"ann", 10}) {
		fmt.Println(k.First, k.Second)
	}
	if err := tx.Err(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// ann 4
	// ann 5
}
