package admin

import "time"

// Status says how an application is in one process.
type Status struct {
	Application   string    `json:"application"`
	Instance      string    `json:"instance"`
	Version       string    `json:"version"`
	Ready         bool      `json:"ready"`
	Unready       []string  `json:"unready,omitempty"` // why it is not ready
	Joined        bool      `json:"joined"`            // the group has given this process an assignment
	Generation    int32     `json:"generation"`
	LastHeartbeat time.Time `json:"last_heartbeat,omitzero"`
	Shards        []Shard   `json:"shards"`          // those that are here
	Queue         *Queue    `json:"queue,omitempty"` // of a program that works on one
}

// Shard says how one shard is.
type Shard struct {
	ID         string    `json:"id"`
	Topic      string    `json:"topic"`
	Partition  int32     `json:"partition"`
	Phase      string    `json:"phase"`
	Reason     string    `json:"reason,omitempty"` // why it is not running
	Since      time.Time `json:"since,omitzero"`   // when the phase began
	Paused     bool      `json:"paused,omitempty"` // it consumes nothing until it is resumed
	Lag        int64     `json:"lag"`              // messages not consumed, up to the last stable offset; -1: unknown
	LagSeconds float64   `json:"lag_seconds"`      // how long ago the next one was published
	Offsets    []Offset  `json:"offsets"`          // committed, by topic and partition
	Changelog  int64     `json:"changelog"`        // the position in the changelog
	Bytes      int64     `json:"state_bytes"`      // about, of the state
	Restore    *Restore  `json:"restore,omitempty"`
	Commits    int64     `json:"commits"` // since the shard came here
	LastCommit time.Time `json:"last_commit,omitzero"`
	Busy       *Call     `json:"busy,omitempty"` // the call of user code that runs
}

// Offset is the first message of a partition that is not consumed.
type Offset struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Next      int64  `json:"next"`
}

// Restore says how far a restore is: from Next it reads to End.
type Restore struct {
	Next    int64   `json:"next"`
	End     int64   `json:"end"`
	Seconds float64 `json:"seconds_left,omitempty"` // about, as it has gone so far; 0: nobody knows
}

// Call is a call of user code.
type Call struct {
	Name    string    `json:"name"`
	Since   time.Time `json:"since"`
	Message string    `json:"message,omitempty"` // what it was given
	Stack   string    `json:"stack,omitempty"`   // only when it is stuck
}
