package kafka

import (
	"context"
	"errors"
	"time"

	"github.com/pawlstream/pawl/topic"
)

// SessionConfig says what a session is for. Zero fields mean the defaults
// named beside them.
type SessionConfig struct {
	TransactionalID    string
	TransactionTimeout time.Duration // 10 s

	FetchMaxBytes          int // of one fetch: 16 MiB
	FetchMaxPartitionBytes int // of one partition in a fetch: 1 MiB
	MaxBatchBytes          int // of one record batch on the wire: the library's limit, which is Kafka's default
}

// ProducerIdentity is what the coordinator gave a fenced session.
type ProducerIdentity struct {
	ID    int64
	Epoch int16
}

// CommitResult says where the records of a transaction went.
type CommitResult struct {
	Next map[topic.Partition]int64 // per partition that was written: the offset after its last record
}

// Session is the producer and reader of one shard.
type Session struct{}

func NewSession(Config, SessionConfig) (*Session, error) { return nil, errors.ErrUnsupported }
func (s *Session) Fence(ctx context.Context) (ProducerIdentity, error) {
	return ProducerIdentity{}, errors.ErrUnsupported
}
func (s *Session) Commit(ctx context.Context, recs []Record) (CommitResult, error) {
	return CommitResult{}, errors.ErrUnsupported
}
func (s *Session) Consume(d *topic.Description, p int32, offset int64) {}
func (s *Session) StopConsuming(parts ...topic.Partition)              {}
func (s *Session) Poll(ctx context.Context, max int, into *Batch) error {
	return errors.ErrUnsupported
}
func (s *Session) Buffered() int { return 0 }
func (s *Session) NextOffset(ctx context.Context, p topic.Partition, at int64) (next int64, err error) {
	return 0, errors.ErrUnsupported
}
func (s *Session) Close() {}

// ReaderConfig says what a reader sees.
type ReaderConfig struct {
	Committed bool // only what is committed, or not in a transaction
}

// Reader reads partitions without a group and without transactions.
type Reader struct{}

func NewReader(Config, ReaderConfig) (*Reader, error)                 { return nil, errors.ErrUnsupported }
func (r *Reader) Consume(d *topic.Description, p int32, offset int64) {}
func (r *Reader) StopConsuming(parts ...topic.Partition)              {}
func (r *Reader) Poll(ctx context.Context, max int, into *Batch) error {
	return errors.ErrUnsupported
}
func (r *Reader) Close() {}

// Producer publishes without transactions: idempotent, acknowledged by all
// replicas in sync.
type Producer struct{}

func NewProducer(Config) (*Producer, error) { return nil, errors.ErrUnsupported }
func (p *Producer) Publish(ctx context.Context, recs ...Record) error {
	return errors.ErrUnsupported
}
func (p *Producer) Close() {}
