package kafka

import (
	"context"
	"errors"
	"time"

	"github.com/pawlstream/pawl/topic"
)

// Admin looks at a cluster and creates what is missing. Safe for concurrent
// use.
type Admin struct{}

// TopicInfo is what the cluster says about a topic.
type TopicInfo struct {
	Name        string
	ID          topic.ID
	Partitions  int
	Replication int
}

// TopicSpec says how a topic is to be created.
type TopicSpec struct {
	Name        string
	Partitions  int   // 0: the broker's default
	Replication int16 // 0 or -1: the broker's default
	Settings    map[string]string
}

// At names a place in a partition: [Earliest], [End], [StableEnd] or a [Time].
type At struct {
	place int8
	time  time.Time
}

// Committed is what a group has committed for a partition.
type Committed struct {
	Offset   int64
	Metadata string
}

// OpenTransaction is a transaction that holds a partition's last stable offset
// back.
type OpenTransaction struct {
	ProducerID      int64
	Epoch           int16
	TransactionalID string // empty where it can't be found
	StartOffset     int64  // the first offset of the transaction in the partition
	Since           time.Time
}

// Transaction is a transactional ID that the cluster's coordinators know.
type Transaction struct {
	ID         string
	ProducerID int64
	Epoch      int16
	State      string // as Kafka names it: Empty, Ongoing, CompleteCommit, …
	Started    time.Time
	Timeout    time.Duration
	Partitions []topic.Partition
}

var (
	Earliest  = At{place: 1} // the first offset that the partition holds
	End       = At{place: 2} // the high watermark
	StableEnd = At{place: 3} // the last stable offset
)

// Time is the first offset whose timestamp is t or later, or the end.
func Time(t time.Time) At { return At{place: 4, time: t} }

func NewAdmin(Config) (*Admin, error)                           { return nil, errors.ErrUnsupported }
func (a *Admin) Close()                                         {}
func (a *Admin) Check(ctx context.Context, allowOld bool) error { return errors.ErrUnsupported }
func (a *Admin) Topics(ctx context.Context, names ...string) (map[string]TopicInfo, error) {
	return nil, errors.ErrUnsupported
}
func (a *Admin) TopicSettings(ctx context.Context, name string) (map[string]string, error) {
	return nil, errors.ErrUnsupported
}
func (a *Admin) CreateTopic(ctx context.Context, spec TopicSpec) (created bool, err error) {
	return false, errors.ErrUnsupported
}
func (a *Admin) DeleteTopics(ctx context.Context, names ...string) error {
	return errors.ErrUnsupported
}
func (a *Admin) CreatePartitions(ctx context.Context, name string, total int) error {
	return errors.ErrUnsupported
}
func (a *Admin) Offsets(ctx context.Context, at At, parts ...topic.Partition) (map[topic.Partition]int64, error) {
	return nil, errors.ErrUnsupported
}
func (a *Admin) Committed(ctx context.Context, group string) (map[topic.Partition]Committed, error) {
	return nil, errors.ErrUnsupported
}
func (a *Admin) OpenTransactions(ctx context.Context, p topic.Partition) ([]OpenTransaction, error) {
	return nil, errors.ErrUnsupported
}
func (a *Admin) Transactions(ctx context.Context) ([]Transaction, error) {
	return nil, errors.ErrUnsupported
}
func (a *Admin) DeleteRecords(ctx context.Context, p topic.Partition, before int64) error {
	return errors.ErrUnsupported
}
func (a *Admin) DeleteGroup(ctx context.Context, group string) error { return errors.ErrUnsupported }
