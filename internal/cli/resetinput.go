package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pawlstream/pawl/internal/changelog"
	"github.com/pawlstream/pawl/internal/kafka"
)

// topicsOfSets reads SET=TOPIC pairs.
func topicsOfSets(cmd *cobra.Command, pairs []string) (map[string][]string, error) {
	consumes := make(map[string][]string)
	for _, pair := range pairs {
		set, name, ok := strings.Cut(pair, "=")
		switch {
		case !ok || set == "" || name == "":
			return nil, usagef(cmd, "--topic %q: want SET=TOPIC", pair)
		case slices.Contains(consumes[set], name):
			return nil, usagef(cmd, "--topic %q is given twice", pair)
		}
		consumes[set] = append(consumes[set], name)
	}
	return consumes, nil
}

// findInputs completes what the shards consume of which the changelog does not
// say so: they have not begun, or a reset was cut off. It is what other shards
// of the set consume, or what the user names, or the topic that the set has its
// name from.
func (r *reset) findInputs(p *resetPlan) error {
	known := make(map[string][]string)
	for _, s := range p.shards {
		for _, in := range s.offsets.Inputs {
			if !slices.Contains(known[s.set], in.Topic) {
				known[s.set] = append(known[s.set], in.Topic)
			}
		}
	}
	for set, topics := range r.consumes {
		if there := known[set]; there != nil && !sameItems(there, topics) {
			return fmt.Errorf("--topic: set %s consumes %s", printable(set), printable(strings.Join(there, " and ")))
		}
		if !slices.ContainsFunc(p.shards, func(s shardPosition) bool { return s.set == set }) {
			return fmt.Errorf("--topic: application %s has no set %s", r.application, printable(set))
		}
	}
	var unknown []error
	for i := range p.shards {
		s := &p.shards[i]
		if len(s.offsets.Inputs) > 0 {
			continue
		}
		topics := known[s.set]
		if topics == nil {
			topics = r.consumes[s.set]
		}
		if _, named := p.infos[s.set]; topics == nil && named {
			topics = []string{s.set}
		}
		if topics == nil {
			unknown = append(unknown, fmt.Errorf("set %s: which topics does it consume? Nothing on the cluster says so: none of its shards has begun, as after a reset that was cut off: say --topic %s=TOPIC, again for another", printable(s.set), printable(s.set)))
			known[s.set] = []string{} // it is said once
			continue
		}
		for _, name := range topics {
			info, ok := p.infos[name]
			switch {
			case !ok:
				return fmt.Errorf("set %s consumes topic %s: %w", printable(s.set), printable(name), kafka.ErrUnknownTopic)
			case int(s.changelog.Number) < info.Partitions:
				s.offsets.Inputs = append(s.offsets.Inputs, changelog.Offset{Topic: name, ID: info.ID, Partition: s.changelog.Number, Next: -1})
			}
		}
	}
	return errors.Join(unknown...)
}

func sameItems(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}
