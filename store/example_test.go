package store_test

import (
	"fmt"
	"log"
	"os"
	"time"

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

// A session is gone half an hour after it was last written. Its codec has had a
// version before this one, whose values are still read.
var sessions = store.NewTable("sessions", store.String, store.JSON[session](), store.TTL(30*time.Minute), store.Version[session](1, plainSession{}))

type session struct {
	User string
	Hits int
}

// plainSession is the codec of version 0, when a session was its user's name.
type plainSession struct{}

func (plainSession) Append(dst []byte, s session) ([]byte, error) { return append(dst, s.User...), nil }
func (plainSession) Decode(src []byte) (session, error)           { return session{User: string(src)}, nil }

func ExampleTTL() {
	dir, err := os.MkdirTemp("", "shard")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	now := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	shard, err := store.Open(store.Config{Dir: dir, Now: func() time.Time { return now }})
	if err != nil {
		log.Fatal(err)
	}
	defer shard.Close()

	tx := shard.Transaction()
	for range 2 {
		s, err := sessions.Update(tx, "a1b2", func(s session) session { s.User = "ada"; s.Hits++; return s })
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(s.Hits)
	}
	now = now.Add(time.Hour)
	_, ok, err := sessions.Get(tx, "a1b2")
	fmt.Println(ok, err)
	// Output:
	// 1
	// 2
	// false <nil>
}

// What is known of the world outside is written from outside the stream's
// messages, and seen by them at once.
func ExampleTable_In() {
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

	if err := words.In(shard.DB()).Put("to", 40); err != nil {
		log.Fatal(err)
	}
	n, err := words.Update(shard.Transaction(), "to", func(n int64) int64 { return n + 2 })
	fmt.Println(n, err)
	// Output: 42 <nil>
}

// Keys that are about to be used are read in one go, in the order in which they are
// stored. What comes of them is the same as without.
func ExampleTable_Prefetch() {
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
	message := []string{"to", "be", "or", "not", "to", "be"}
	if err := words.Prefetch(tx, message); err != nil {
		log.Fatal(err)
	}
	for _, word := range message {
		n, err := words.Update(tx, word, func(n int64) int64 { return n + 1 })
		if err != nil {
			log.Fatal(err)
		}
		fmt.Print(word, "=", n, " ")
	}
	// Output: to=1 be=1 or=1 not=1 to=2 be=2
}
