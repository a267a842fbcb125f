package broker

import (
	"context"
	"time"
)

// tick is how often the janitor looks whether something is due: once a second,
// unless a setting wants something more often.
func (b *Broker) tick() time.Duration {
	every := time.Second
	for _, setting := range []string{
		"offsets.retention.check.interval.ms", "log.retention.check.interval.ms", "log.cleaner.backoff.ms",
		"transaction.abort.timed.out.transaction.cleanup.interval.ms",
	} {
		every = min(every, time.Duration(b.settings.number(setting))*time.Millisecond)
	}
	return max(every, 10*time.Millisecond)
}

// reclaimEvery is how often deleted data are looked for on disk: each time
// makes the storage flush.
const reclaimEvery = time.Minute

// clean does what is due with time, until stop: it ends transactions that have
// timed out, drops what has expired, deletes by retention, and compacts.
func (b *Broker) clean(stop chan struct{}) {
	every := time.NewTicker(b.tick())
	defer every.Stop()
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	due := make(map[string]time.Time)
	isDue := func(what, setting string) bool {
		at, ok := due[what]
		if ok && time.Now().Before(at) {
			return false
		}
		due[what] = time.Now().Add(time.Duration(b.settings.number(setting)) * time.Millisecond)
		return ok // the first time is one interval after the start
	}
	reclaimed := time.Now()
	for {
		select {
		case <-every.C:
		case <-stop:
			return
		case <-b.dead:
			return
		}
		b.checkSpace()
		b.timeOut(now())
		if isDue("offsets", "offsets.retention.check.interval.ms") {
			b.expire(now())
		}
		if isDue("retention", "log.retention.check.interval.ms") {
			b.retain(now())
		}
		if time.Since(reclaimed) >= reclaimEvery {
			reclaimed = time.Now()
			b.reclaimNow(ctx)
		}
		if isDue("compaction", "log.cleaner.backoff.ms") {
			b.compactAll(ctx, now())
		}
	}
}

// timeOut aborts transactions that have been going on for too long. The epoch
// is raised, so that their producers find out.
func (b *Broker) timeOut(at int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, x := range b.mu.transactions {
		// One that began in the future began before the clock was set back. It is
		// not to stay open, and hide what comes after it, until that time is here.
		if x.state == stateOngoing {
			x.started = min(x.started, at)
		}
		if x.state != stateOngoing || at-x.started < x.timeout {
			continue
		}
		var o op
		b.config.Logger.Info("a transaction timed out and is aborted", "transaction", x.id, "producer", x.producer, "epoch", x.epoch)
		b.endLocked(x, false, true, at, &o)
		x.fenced = true
		x.stageLocked(at, &o)
		b.stageLocked(&o)
	}
}

// expire drops what nobody has used for as long as the settings keep it:
// committed offsets, transactional IDs, what partitions know of producers.
func (b *Broker) expire(at int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var o op
	keep := b.settings.number("offsets.retention.minutes") * 60_000
	for _, g := range b.mu.groups {
		g.expireOffsetsLocked(at, keep, &o)
		if g.state == groupEmpty && len(g.offsets) == 0 && len(g.pending) == 0 && len(g.announced) == 0 && at-g.emptySince >= keep {
			g.deleteLocked(&o)
		}
	}
	keep = b.settings.number("transactional.id.expiration.ms")
	for id, x := range b.mu.transactions {
		if x.state != stateOngoing && at-x.updated >= keep {
			delete(b.mu.transactions, id)
			delete(b.mu.byProducer, x.producer)
			o.remove(transactionKey(id))
		}
	}
	keep = b.settings.number("producer.id.expiration.ms")
	for _, p := range b.mu.partitions {
		for id, s := range p.producers {
			if s.txnFirst < 0 && at-s.used >= keep {
				delete(p.producers, id)
				o.remove(offsetKey(prefixProducer, p.id, id))
			}
		}
	}
	if len(o.changes) > 0 {
		b.stageLocked(&o)
	}
}

// checkSpace looks how much room the disk has.
func (b *Broker) checkSpace() {
	if b.config.freeSpace == nil || b.config.FreeSpace < 0 {
		return
	}
	free, err := b.config.freeSpace(b.dir)
	if err != nil {
		b.config.Logger.Warn("look at the disk's free space", "dir", b.dir, "error", err)
		return
	}
	low := free < uint64(b.config.FreeSpace)
	if b.latency.low.Swap(low) != low {
		if low {
			b.config.Logger.Error("the disk is nearly full: produces are refused", "dir", b.dir, "free", free, "want", b.config.FreeSpace)
		} else {
			b.config.Logger.Info("the disk has space again", "dir", b.dir, "free", free)
		}
	}
}

// outOfSpace says whether produces are refused for want of space.
func (b *Broker) outOfSpace() bool { return b.latency.low.Load() || b.disk.waits() }
