package admin

import "time"

// Queue says how a work queue's consumer is in one process. The counts are
// since it was started.
type Queue struct {
	Consumer     string           `json:"consumer"`
	Topic        string           `json:"topic"`
	Group        string           `json:"group"`
	Paused       bool             `json:"paused"`
	Breaker      string           `json:"breaker"`
	BreakerOpen  time.Time        `json:"breaker_open,omitzero"`   // since when the breaker is not closed
	BreakerError string           `json:"breaker_error,omitempty"` // of the last attempt that failed, while it is not
	Acked        int64            `json:"acked"`
	Failed       int64            `json:"failed_attempts"`
	RetriedNow   int64            `json:"retried_in_place"`
	RetriedLater int64            `json:"retried_later"`
	DeadLetters  map[string]int64 `json:"dead_letters"` // by reason
	Redelivered  int64            `json:"redelivered"`
	Partitions   []QueuePartition `json:"partitions"` // those that are here
}

// QueuePartition says how one partition of a queue is.
type QueuePartition struct {
	Partition int32     `json:"partition"`
	Phase     string    `json:"phase"`
	Reason    string    `json:"reason,omitempty"`
	Since     time.Time `json:"since,omitzero"`
	Committed int64     `json:"committed"`
	Position  int64     `json:"position"` // all below was read
	Lag       int64     `json:"lag"`      // messages not read; -1: unknown
	InFlight  int       `json:"in_flight"`
	Backlog   int64     `json:"backlog"` // read and not settled
	Delayed   int       `json:"delayed"` // of these, waiting until they are due
	Held      int64     `json:"held"`    // in delay topics, as far as they hold back a key or are held back
	Full      bool      `json:"full"`    // a limit is reached: it is read no further
	Oldest    *Oldest   `json:"oldest,omitempty"`
}

// Oldest is the oldest unsettled message of a partition.
type Oldest struct {
	Offset  int64     `json:"offset"`
	Key     []byte    `json:"key"`
	Attempt int       `json:"attempt"`
	Since   time.Time `json:"since,omitzero"`  // when this process fetched it
	Handed  time.Time `json:"handed,omitzero"` // when a handler was given it
}
