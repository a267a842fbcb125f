package filestats

import (
	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/store"
	"github.com/pawlstream/pawl/topic"
)

// Change is what one commit did to one file: a message of the input.
type Change struct {
	Commit     string `json:"commit"`
	Author     string `json:"author"`
	AuthoredAt int64  `json:"authored_at"` // Unix seconds
	Path       string `json:"path"`
	Added      int64  `json:"added"` // lines; null, for a binary file, counts as 0
	Deleted    int64  `json:"deleted"`
}

// Totals are what is kept for a path, for an author, and for an author's day.
type Totals struct {
	Events  int64 `json:"events"`
	Added   int64 `json:"added"`
	Deleted int64 `json:"deleted"`
}

// plus returns the function that adds one change to totals.
func plus(added, deleted int64) func(Totals) Totals {
	return func(t Totals) Totals {
		return Totals{t.Events + 1, t.Added + added, t.Deleted + deleted}
	}
}

// Position is where a message was consumed from.
type Position struct {
	Partition int32 `json:"partition"`
	Offset    int64 `json:"offset"`
}

// PathTotals is what ByPath publishes for each change: by how much the totals
// of its path grew, and what they are now.
type PathTotals struct {
	Author     string   `json:"author"`
	AuthoredAt int64    `json:"authored_at"`
	Path       string   `json:"path"`
	Added      int64    `json:"added"`
	Deleted    int64    `json:"deleted"`
	Totals     Totals   `json:"totals"`
	Input      Position `json:"input"`
}

// AuthorTotals is what ByAuthor publishes for each message of ByPath's: by how
// much the totals of its author grew, what they are now, and what they are for
// the day, in UTC, that the change was made on.
type AuthorTotals struct {
	Author    string   `json:"author"`
	Day       string   `json:"day"` // such as 2011-08-02
	Added     int64    `json:"added"`
	Deleted   int64    `json:"deleted"`
	Totals    Totals   `json:"totals"`
	DayTotals Totals   `json:"day_totals"`
	Input     Position `json:"input"`
}

// The tables of the shards' databases. Each is in the shards of one consumer.
var (
	Paths      = store.NewTable("paths", store.String, store.JSON[Totals]())
	Authors    = store.NewTable("authors", store.String, store.JSON[Totals]())
	AuthorDays = store.NewTable("author-days", store.PairOf(store.String, store.String), store.JSON[Totals]())
)

// Partitions is the number of partitions that the topics are created with.
const Partitions = 8

// Program is the two consumers, of one application.
type Program struct {
	ByPath   ByPath
	ByAuthor ByAuthor
}

// New returns the program. Its topics' names begin with the prefix, so that
// several runs can share a cluster.
func New(prefix string) *Program {
	eight := topic.Partitions(Partitions)
	changes := topic.JSON(prefix+"changes", topic.KeyedBy(func(c Change) string { return c.Path })).With(eight)
	byAuthor := topic.JSON(prefix+"changes-by-author", topic.KeyedBy(func(t PathTotals) string { return t.Author })).With(eight)
	totals := topic.JSON(prefix+"author-totals", topic.KeyedBy(func(t AuthorTotals) string { return t.Author })).With(eight)
	return &Program{
		ByPath:   ByPath{In: changes, Out: byAuthor},
		ByAuthor: ByAuthor{In: byAuthor, Out: totals},
	}
}

// Consumers returns both.
func (p *Program) Consumers() []consumer.Consumer {
	return []consumer.Consumer{p.ByPath, p.ByAuthor}
}
