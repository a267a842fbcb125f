package messaging

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// verdict says what becomes of a message after an attempt.
type verdict struct {
	deed   deed
	delay  time.Duration // before the next attempt
	tier   int           // toTier: which, from 1
	reason string        // toDeadLetters
}

type deed int8

const (
	toAck         deed = iota // it is done
	toLater                   // whoever handles it will say
	toAgain                   // handle it again after the delay; it stays where it is
	toTier                    // write it to a delay topic
	toDeadLetters             // write it to the dead letters
)

// errNacked is the error of a message whose Nack was called.
var errNacked = errors.New("nacked")

// judge says what becomes of a message whose attempt, counted from 1, ended
// with err. In the order by partition nothing leaves its place.
func (r Retry) judge(attempt int, err error, order Order, random *rand.Rand) verdict {
	if err == nil {
		return verdict{deed: toAck}
	}
	if errors.Is(err, Later) {
		return verdict{deed: toLater}
	}
	var dead *deadLetter
	if errors.As(err, &dead) {
		return verdict{deed: toDeadLetters, reason: dead.reason}
	}
	if attempt >= r.attempts() {
		return verdict{deed: toDeadLetters, reason: ReasonFailed}
	}
	var after *retryAfter
	if errors.As(err, &after) {
		if after.delay <= r.BackoffMax || len(r.Tiers) == 0 || order == ByPartition {
			return verdict{deed: toAgain, delay: min(after.delay, tierMax)}
		}
		tier := 1
		for tier < len(r.Tiers) && r.Tiers[tier-1] < after.delay {
			tier++
		}
		return verdict{deed: toTier, tier: tier, delay: min(after.delay, tierMax)}
	}
	if attempt < r.InPlace {
		return verdict{deed: toAgain, delay: r.backoff(attempt, random)}
	}
	tier := attempt - r.InPlace + 1
	if order == ByPartition {
		return verdict{deed: toAgain, delay: r.Tiers[tier-1]}
	}
	return verdict{deed: toTier, tier: tier, delay: r.Tiers[tier-1]}
}

// backoff returns the delay after so many failed attempts in place.
func (r Retry) backoff(failed int, random *rand.Rand) time.Duration {
	d := r.BackoffMax
	if shift := failed - 1; shift < 30 && r.BackoffMin<<shift < d {
		d = r.BackoffMin << shift
	}
	return d - time.Duration(random.Int64N(int64(d)/2+1))
}

func (v verdict) String() string {
	switch v.deed {
	case toAck:
		return "ack"
	case toLater:
		return "later"
	case toAgain:
		return fmt.Sprintf("again after %v", v.delay)
	case toTier:
		return fmt.Sprintf("tier %d for %v", v.tier, v.delay)
	}
	return "dead letter: " + v.reason
}
