package consumer

import (
	"time"

	"github.com/pawlstream/pawl/topic"
)

// Phase is where a shard is in its life.
type Phase string

// The phases of a shard's life: it goes from fencing by restoring to running,
// and by draining to stopped. It is failed while it backs off after an error,
// before it starts again with fencing.
const (
	Fencing   Phase = "fencing"   // ending whatever its last owner has begun
	Restoring Phase = "restoring" // reading the changelog into the database
	Running   Phase = "running"
	Draining  Phase = "draining" // finishing the open transaction
	Stopped   Phase = "stopped"
	Failed    Phase = "failed" // backing off; ShardStatus.Reason says why
)

// ShardStatus says how a shard is.
type ShardStatus struct {
	ID        ShardID
	Partition topic.Partition
	Phase     Phase
	Reason    string                    // why it failed, or is not running yet
	Since     time.Time                 // when the phase began
	Paused    bool                      // it consumes nothing until it is resumed
	Lag       int64                     // messages not consumed, up to the last stable offset
	LagTime   time.Duration             // how long ago the next message to consume was published, or the last one consumed, as far as the timestamps say; 0 without lag
	Offsets   map[topic.Partition]int64 // committed: the first message not consumed
	Changelog int64                     // the position in the changelog
	Bytes     int64                     // of the state, about, as looked at now and then

	// While restoring: from where to where, how far it has come, and since when.
	RestoreFrom, RestoreNext, RestoreEnd int64
	RestoreBegan                         time.Time

	Commits    int64     // since the shard came here
	LastCommit time.Time // zero before the first

	// The call of user code that runs, if one does.
	Busy *BusyStatus
}

// BusyStatus says which call of user code runs.
type BusyStatus struct {
	Call    string // Consume, Flush, InitShard or HaltShard
	Since   time.Time
	Message string // the message it was given: topic, partition, offset and key
	Stack   string // only when it is stuck
}

// Status says how the application is in this process.
type Status struct {
	Application   string
	Instance      string
	Joined        bool          // the group has given this process an assignment
	Generation    int32         // of that assignment
	LastHeartbeat time.Time     // the last that the group answered without error
	Paused        bool          // all shards are, also those that come
	Missing       []string      // consumed topics that do not exist any more
	Unsafe        []string      // which changelogs are set to lose state, since when they were last looked at
	Shards        []ShardStatus // those that are here, in order of their IDs
}
