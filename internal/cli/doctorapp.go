package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// applicationTopics checks the topics of the application, and those that were
// named, and returns those that there are.
func (d *doctor) applicationTopics(ctx context.Context, a *kafka.Admin) []string {
	ctx, cancel := context.WithTimeout(ctx, doctorTime)
	defer cancel()
	if d.application == "" && len(d.topics) == 0 {
		d.skip("topics", "name an --application, or a --topic")
		return nil
	}
	all, err := a.Topics(ctx)
	if err != nil {
		d.found(isFailure, "topics", err.Error(), "")
		return nil
	}
	d.addInputs(ctx, a, all)
	var names []string
	for _, name := range d.topics {
		if _, ok := all[name]; !ok {
			d.found(isFailure, "topic "+name, "it does not exist, or this user may not describe it", "create it with pawl topic create, or allow DESCRIBE of it")
			continue
		}
		names = append(names, name)
		d.topic(ctx, a, all[name], false)
	}
	own := 0
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if d.application != "" && strings.HasPrefix(name, d.application+".") {
			own++
			names = append(names, name)
			d.topic(ctx, a, all[name], strings.HasSuffix(name, ".changelog") || strings.HasSuffix(name, ".dlq.outcomes"))
			if strings.HasSuffix(name, ".dlq") {
				d.letters(ctx, a, name)
			}
		}
	}
	if d.application != "" && own == 0 {
		d.ok("topics of "+d.application, "there are none yet: they are created when the application starts")
	}
	return names
}

// addInputs adds the topics of which the application, or one of its queues, has
// committed an offset to those that were named. What it publishes to, and what it
// has not read yet, nobody but the program knows.
func (d *doctor) addInputs(ctx context.Context, a *kafka.Admin, all map[string]kafka.TopicInfo) {
	if d.application == "" {
		return
	}
	check := "inputs of " + d.application
	const mend = "name its inputs, its outputs, and topics of dead letters that have other names, with --topic"
	groups, err := a.Groups(ctx)
	if err != nil {
		d.skip(check, "%v: %s", err, mend)
		return
	}
	var inputs, gone []string
	for _, g := range groups {
		if g.Name != d.application && !strings.HasPrefix(g.Name, d.application+".") {
			continue
		}
		committed, err := a.Committed(ctx, g.Name)
		if err != nil {
			d.skip(check+" by group "+g.Name, "%v: %s", err, mend)
			continue
		}
		for p := range committed {
			switch _, ok := all[p.Topic]; {
			case !ok:
				gone = append(gone, p.Topic)
			case !strings.HasPrefix(p.Topic, d.application+"."):
				inputs = append(inputs, p.Topic)
			}
		}
	}
	slices.Sort(gone)
	for _, name := range slices.Compact(gone) {
		d.found(isWarning, "input "+name, "offsets of it are committed, and it does not exist, or this user may not describe it", "create it, or allow DESCRIBE of it, if it is still consumed")
	}
	slices.Sort(inputs)
	inputs = slices.Compact(inputs)
	if len(inputs) == 0 {
		d.skip(check, "nothing is committed of any that is there: %s", mend)
		return
	}
	d.ok(check, "%s, by what is committed; its outputs, and topics of dead letters that have other names, are not known: name them with --topic", strings.Join(inputs, ", "))
	for _, name := range inputs {
		if !slices.Contains(d.topics, name) {
			d.topics = append(d.topics, name)
		}
	}
}

// topic checks one topic's settings.
func (d *doctor) topic(ctx context.Context, a *kafka.Admin, t kafka.TopicInfo, compacted bool) {
	check := "topic " + t.Name
	settings, err := a.TopicSettings(ctx, t.Name)
	if err != nil {
		d.found(isWarning, check, err.Error(), "allow DESCRIBE_CONFIGS of it, so that its settings can be checked")
		return
	}
	policy := settings["cleanup.policy"]
	if compacted && policy != "compact" {
		d.found(isFailure, check, fmt.Sprintf("cleanup.policy is %q: the application's state goes with what retention deletes", policy), fmt.Sprintf("pawl topic alter %s --set cleanup.policy=compact", t.Name))
		return
	}
	insync, err := strconv.Atoi(settings["min.insync.replicas"])
	switch {
	case err != nil: // a broker that has no such setting
		d.ok(check, "%d partitions, %d replicas", t.Partitions, t.Replication)
	case insync > t.Replication:
		d.found(isFailure, check, fmt.Sprintf("min.insync.replicas is %d, and there are %d replicas: nothing can be written", insync, t.Replication), fmt.Sprintf("pawl topic alter %s --set min.insync.replicas=%d, or add replicas", t.Name, max(1, t.Replication-1)))
	case t.Replication == 1:
		d.found(isWarning, check, fmt.Sprintf("%d partitions, 1 replica: what is written is lost with the broker's disk", t.Partitions), "for data that matters, 3 replicas and min.insync.replicas=2; --replication sets it for topics that Pawl creates")
	case insync == 1:
		d.found(isWarning, check, fmt.Sprintf("%d partitions, %d replicas, min.insync.replicas 1: what was acknowledged may be on one broker alone", t.Partitions, t.Replication), fmt.Sprintf("pawl topic alter %s --set min.insync.replicas=2", t.Name))
	default:
		d.ok(check, "%d partitions, %d replicas, min.insync.replicas %d", t.Partitions, t.Replication, insync)
	}
}

// letters checks whether a topic of dead letters keeps them for long enough. That
// its settings can't be seen is said already.
func (d *doctor) letters(ctx context.Context, a *kafka.Admin, name string) {
	check := "dead letters in " + name
	settings, err := a.TopicSettings(ctx, name)
	if err != nil {
		d.skip(check, "its settings can't be seen")
		return
	}
	if policy := settings["cleanup.policy"]; strings.Contains(policy, "compact") {
		d.found(isFailure, check, fmt.Sprintf("cleanup.policy is %s: of the letters of one key it keeps one", policy), fmt.Sprintf("pawl topic alter %s --set cleanup.policy=delete", name))
		return
	}
	lapses := kafka.LetterLapses(settings)
	if len(lapses) == 0 {
		d.ok(check, "they are kept for a week at least, whatever their size")
		return
	}
	var what, mend []string
	for _, l := range lapses {
		what = append(what, fmt.Sprintf("%s is %s: %s", l.Setting, l.Value, l.What))
		mend = append(mend, fmt.Sprintf("--set %s=%s", l.Setting, l.Want))
	}
	d.found(isWarning, check, strings.Join(what, "; "), fmt.Sprintf("pawl topic alter %s %s", name, strings.Join(mend, " ")))
}

// permissions checks what this user may do.
func (d *doctor) permissions(ctx context.Context, a *kafka.Admin, names []string) {
	ctx, cancel := context.WithTimeout(ctx, doctorTime)
	defer cancel()
	if d.application == "" && len(names) == 0 {
		d.skip("permissions", "name an --application, or a --topic")
		return
	}
	allowed, err := a.TopicOperations(ctx, names...)
	if err != nil {
		d.found(isWarning, "permissions", err.Error(), "")
	}
	for _, name := range names {
		wanted := []kafka.Operation{kafka.OpRead, kafka.OpDescribe}
		if !slices.Contains(d.topics, name) {
			wanted = append(wanted, kafka.OpWrite, kafka.OpDescribeConfigs)
		}
		d.allowed("permissions of topic "+name, allowed[name], wanted...)
	}
	if d.application == "" {
		return
	}
	var ops kafka.Operations
	err = patiently(ctx, func() (err error) {
		ops, err = a.GroupOperations(ctx, d.application)
		return err
	})
	check := "permissions of group " + d.application
	switch {
	case err != nil:
		d.refused(check, err, "allow READ of the group, and DESCRIBE")
	case ops == nil:
		d.ok(check, "DESCRIBE allowed; more is not said of a group that does not exist yet")
	default:
		d.allowed(check, ops, kafka.OpRead, kafka.OpDescribe)
	}
	check = "permissions of transactional IDs"
	err = patiently(ctx, func() error { return a.CheckTransactionalID(ctx, d.application+".doctor-000") })
	if err != nil {
		d.refused(check, err, fmt.Sprintf("allow WRITE and DESCRIBE of the transactional IDs that begin with %s.", d.application))
	} else {
		d.ok(check, "DESCRIBE is allowed; WRITE can't be asked for without using one")
	}
	if ops, err = a.ClusterOperations(ctx); err != nil {
		d.skip("permissions of the cluster", "%v", err)
		return
	}
	if missing := ops.Missing(kafka.OpCreate); ops != nil && len(missing) > 0 {
		d.found(isWarning, "permissions of the cluster", "CREATE is not allowed", fmt.Sprintf("allow CREATE of topics that begin with %s., or create them by hand before the application starts", d.application))
	} else {
		d.allowed("permissions of the cluster", ops, kafka.OpCreate)
	}
}

// askAgain is the time between two questions to a coordinator that is not
// there yet: a cluster that is new makes it when it is asked for.
const askAgain = 250 * time.Millisecond

// patiently asks until there is an answer that asking again won't change.
func patiently(ctx context.Context, ask func() error) error {
	for {
		err := ask()
		if !kafka.Transient(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(askAgain):
		}
	}
}

// refused tells what is not allowed from what was not answered.
func (d *doctor) refused(check string, err error, mend string) {
	if !errors.Is(err, kafka.ErrUnauthorized) {
		mend = "look at the brokers' logs: the coordinator does not answer, which has nothing to do with permissions"
	}
	d.found(isFailure, check, err.Error(), mend)
}

func (d *doctor) allowed(check string, ops kafka.Operations, wanted ...kafka.Operation) {
	missing := ops.Missing(wanted...)
	switch {
	case ops == nil:
		d.skip(check, "the broker doesn't say what is allowed")
	case len(missing) > 0:
		d.found(isFailure, check, strings.Join(missing, ", ")+" not allowed", "allow this user "+strings.Join(missing, ", "))
	default:
		d.ok(check, "%s allowed", words(wanted))
	}
}

func words(ops []kafka.Operation) string {
	var all []string
	for _, op := range ops {
		all = append(all, string(op))
	}
	return strings.Join(all, ", ")
}

// clockSlack is how far a message may be from the future without anybody's
// clock being wrong enough to matter.
const clockSlack = time.Minute

// clock compares this machine's clock with the latest messages: no request
// tells a broker's time without writing. Those from the future show that a
// clock is wrong; where there are none nothing is known.
func (d *doctor) clock(ctx context.Context, a *kafka.Admin, names []string) {
	ctx, cancel := context.WithTimeout(ctx, doctorTime)
	defer cancel()
	if len(names) == 0 {
		d.skip("clock", "no request tells a broker's time without a write; with --topic, messages from the future are looked for")
		return
	}
	now := d.now()
	infos, err := a.Topics(ctx, names...)
	if err != nil {
		d.skip("clock", "%v", err)
		return
	}
	var parts []topic.Partition
	for _, t := range infos {
		for n := range t.Partitions {
			parts = append(parts, topic.Partition{Topic: t.Name, Number: int32(n)})
		}
	}
	ends, err := a.Offsets(ctx, kafka.End, parts...)
	if err != nil {
		d.skip("clock", "%v", err)
		return
	}
	future, err := a.Offsets(ctx, kafka.Time(now.Add(clockSlack)), parts...)
	if err != nil {
		d.skip("clock", "%v", err)
		return
	}
	for p, end := range ends {
		if at, ok := future[p]; ok && at < end {
			d.found(isWarning, "clock", fmt.Sprintf("%s holds a message at offset %d whose time is more than %v after this machine's %s", p, at, clockSlack, now.UTC().Format(time.RFC3339)), "compare the clocks of this machine, of the brokers and of who writes there: timers, delays and retention go by them")
			return
		}
	}
	d.ok("clock", "no message is from the future, as this machine's %s goes (a clock that is ahead is not found so)", now.UTC().Format(time.RFC3339))
}

// The space on a disk below which a program is in trouble, and below which it
// may soon be.
const (
	spaceFailing = 64 << 20
	spaceWarning = 1 << 30
)

// disk checks the state directory, or where it will be made.
func (d *doctor) disk() {
	if d.stateDir == "" {
		d.skip("disk", "name a --state-dir")
		return
	}
	check := "disk of " + d.stateDir
	dir, err := existing(d.stateDir)
	if err != nil {
		d.found(isFailure, check, err.Error(), "")
		return
	}
	if err := tryWrite(dir); err != nil {
		d.found(isFailure, check, err.Error(), "let the program's user write there, or name another --state-dir")
		return
	}
	free, kind, err := diskOf(dir)
	if errors.Is(err, errors.ErrUnsupported) {
		d.ok(check, "can be written to; its free space is not known on this system")
		return
	}
	if err != nil {
		d.found(isFailure, check, err.Error(), "")
		return
	}
	detail := fmt.Sprintf("can be written to; %d MiB free, %s", free>>20, kind)
	switch {
	case free < spaceFailing:
		d.found(isFailure, check, detail, "make space: shards stop, and wait, when it is used up")
	case kind == "tmpfs":
		d.found(isWarning, check, detail, "a tmpfs is memory, and empty after a restart: state is restored from the brokers each time")
	case slices.Contains([]string{"nfs", "smb", "cifs", "fuse", "9p"}, kind):
		d.found(isWarning, check, detail, "locks and syncs of a network's file system are not to be relied on: use a local disk")
	case kind == "overlay":
		d.found(isWarning, check, detail, "that is a container's own layer, which goes with the container: mount a volume")
	case free < spaceWarning:
		d.found(isWarning, check, detail, "make space before it is used up")
	default:
		d.ok(check, "%s", detail)
	}
}

// existing returns the directory, or the nearest above it that there is.
func existing(dir string) (string, error) {
	for dir = filepath.Clean(dir); ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		switch {
		case err == nil && info.IsDir():
			return dir, nil
		case err == nil:
			return "", fmt.Errorf("%s is not a directory", dir)
		case !errors.Is(err, os.ErrNotExist) || dir == filepath.Dir(dir):
			return "", err
		}
	}
}

// tryWrite writes to a directory and takes it back.
func tryWrite(dir string) error {
	f, err := os.CreateTemp(dir, ".pawl-doctor-*")
	if err != nil {
		return err
	}
	_, err = f.WriteString("written by pawl doctor\n")
	return errors.Join(err, f.Sync(), f.Close(), os.Remove(f.Name()))
}
