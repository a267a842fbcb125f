package cli

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/internal/kafka"
)

// strike is one planned kill.
type strike struct {
	at     int64 // the progress, in messages, at which it comes
	broker bool  // it is the broker that is killed
	victim int   // which of the processes, if it is not
	stays  bool  // the victim stays down past its session, so that the other takes over
}

// planStrikes spreads the kills, of processes and of the broker, evenly over
// the messages, each somewhere in the middle half of its part, as the seed
// says. Every third process that is killed stays down.
func planStrikes(seed uint64, kills, brokerKills int, messages int64, processes int) []strike {
	random := rand.New(rand.NewPCG(seed, 0))
	plan := make([]strike, kills+brokerKills)
	for _, i := range rand.New(rand.NewPCG(seed, 2)).Perm(len(plan))[:brokerKills] {
		plan[i].broker = true
	}
	part := float64(messages) / float64(len(plan)+1)
	killed := 0
	for i := range plan {
		s := &plan[i]
		s.at = int64(part * (float64(i) + 0.75 + random.Float64()/2))
		if s.broker {
			continue
		}
		s.victim, s.stays = random.IntN(processes), killed%3 == 2
		killed++
	}
	return plan
}

// killer kills processes in the middle of a transaction.
//
// A transaction is open for some milliseconds. So the victim is frozen at some
// moment, and then the broker is asked: if one of the victim's transactions is
// open, and still is when enough time has passed for whatever was on the wire
// to arrive, the victim dies in the middle of it. If none is, it goes on, and
// is frozen again a little later.
//
//	SIGSTOP ──► look ──► 20 ms ──► look ──► the same transaction: SIGKILL
//	   ▲                                └─► none: SIGCONT, a moment ┐
//	   └────────────────────────────────────────────────────────────┘
type killer struct {
	admin       func() *kafka.Admin // which a kill of the broker replaces
	watcher     *watcher
	application string
	random      *rand.Rand
	more        func() bool // whether there is work to be killed in: if not, nothing can be open
}

const (
	frozenFor  = 20 * time.Millisecond // for what was on the wire to arrive
	strikeTime = 5 * time.Second       // after which the victim is killed wherever it is
)

// kill kills the victim, and says whether it was in the middle of a
// transaction.
func (k *killer) kill(ctx context.Context, victim *process) (middle bool, err error) {
	deadline := time.Now().Add(strikeTime)
	for time.Now().Before(deadline) && k.more() {
		middle, err := k.try(ctx, victim)
		if err != nil || middle {
			return middle, err
		}
		// Not in step with the victim's own rhythm.
		if err := pause(ctx, time.Millisecond+time.Duration(k.random.Int64N(int64(10*time.Millisecond))), nil); err != nil {
			return false, err
		}
	}
	return false, victim.kill()
}

// try freezes the victim, and kills it if one of its transactions is open, or
// lets it go on.
func (k *killer) try(ctx context.Context, victim *process) (killed bool, err error) {
	if err := victim.signal(syscall.SIGSTOP); err != nil {
		return false, err
	}
	defer func() {
		if !killed {
			err = errors.Join(err, victim.signal(syscall.SIGCONT))
		}
	}()
	before, err := k.open(ctx, victim)
	if err != nil || len(before) == 0 {
		return false, err
	}
	if err := pause(ctx, frozenFor, nil); err != nil {
		return false, err
	}
	after, err := k.open(ctx, victim)
	if err != nil {
		return false, err
	}
	for id, t := range after {
		if was, ok := before[id]; ok && was == t {
			return true, victim.kill()
		}
	}
	return false, nil
}

// openTransaction tells one transaction of a transactional ID from the next.
type openTransaction struct {
	producer int64
	epoch    int16
	started  time.Time
}

// open returns the open transactions of the victim's shards, by their IDs.
func (k *killer) open(ctx context.Context, victim *process) (map[string]openTransaction, error) {
	all, err := k.admin().Transactions(ctx)
	if err != nil {
		return nil, err
	}
	owned := k.watcher.ownedBy(victim.child.instance)
	ids := make(map[string]bool, len(owned))
	for shard := range owned {
		ids[consumer.TransactionalID(k.application, shard)] = true
	}
	open := make(map[string]openTransaction)
	for _, t := range all {
		if ids[t.ID] && t.State == "Ongoing" {
			open[t.ID] = openTransaction{t.ProducerID, t.Epoch, t.Started}
		}
	}
	return open, nil
}

// takeoverShown is how long the other process carries on alone, so that one
// sees it.
const takeoverShown = 3 * time.Second

// takeoverTime is how long after the end of its session a victim stays down at
// the most, if the other process does not take its shards.
const takeoverTime = 20 * time.Second

// stayDown waits until the other process has taken all shards of a victim that
// was killed, and a little longer; and at least for the victim's session.
func (k *killer) stayDown(ctx context.Context, victim *process) error {
	session := time.Now().Add(demoSession)
	wait, cancel := context.WithDeadline(ctx, session.Add(takeoverTime))
	defer cancel()
	err := k.watcher.awaitTaken(wait, victim.child.instance)
	if err != nil && (ctx.Err() != nil || wait.Err() == nil) {
		return fmt.Errorf("wait for the shards of process %s to be taken over: %w", victim.child.instance, err)
	}
	return pause(ctx, max(takeoverShown, time.Until(session)), nil)
}
