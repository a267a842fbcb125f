package consumer

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/pawlstream/pawl/internal/changelog"
	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// metadataFormat is the format of a member's metadata. Fields that they do not
// know are passed over by readers, and a newer format is refused.
const metadataFormat = 1

// capacityMax bounds what a member says of itself.
const capacityMax = 1 << 20

// memberMetadata is what a member tells the leader when it joins: a JSON
// object, in the user data of Kafka's own subscription format, so that
// Kafka's tools can show the rest.
type memberMetadata struct {
	V        int                 `json:"v"`
	Formats  []int               `json:"formats"`          // of changelogs, that it reads
	Capacity int                 `json:"capacity"`         // its share of shards, relative to others'
	Sets     map[string][]string `json:"sets"`             // the topics of each set
	Shards   map[ShardID]warmth  `json:"shards,omitempty"` // those it has a copy of
	Admin    string              `json:"admin,omitempty"`  // HOST:PORT of its admin API, for tools
}

// warmth says how good a member's copy of a shard's state is.
type warmth struct {
	Next    int64 `json:"next"`              // the position in the changelog
	Running bool  `json:"running,omitempty"` // the shard runs there
}

func (m memberMetadata) marshal() []byte {
	b, err := json.Marshal(m)
	if err != nil {
		panic(err) // strings and numbers can be encoded
	}
	return b
}

func parseMetadata(b []byte) (memberMetadata, error) {
	var m memberMetadata
	if err := json.Unmarshal(b, &m); err != nil {
		return m, fmt.Errorf("member metadata: %w", err)
	}
	if m.V != metadataFormat {
		return m, &changelog.FormatError{What: "member metadata", Found: m.V}
	}
	m.Capacity = min(max(m.Capacity, 1), capacityMax)
	return m, nil
}

// member is a member of the group as the assignor sees it.
type member struct {
	id       string
	instance string
	metadata memberMetadata
}

// reads says whether the member can take over a set's shards: it consumes the
// set, and reads the format of changelogs.
func (m member) reads(set string) bool {
	_, ok := m.metadata.Sets[set]
	return ok && slices.Contains(m.metadata.Formats, changelog.Format)
}

// assignGroup is called on the leader of the group. A member whose metadata it
// can't read, such as one of a newer format, is told of and assigned nothing: it
// must not cost the others theirs.
func assignGroup(infos []kafka.MemberInfo, partitions map[string]int32, passed func(instance string, err error)) map[string][]topic.Partition {
	var members []member
	sets := make(map[string][]string)
	for _, info := range infos {
		m, err := parseMetadata(info.Metadata)
		if err != nil {
			passed(info.Instance, err)
			continue
		}
		members = append(members, member{id: info.ID, instance: info.Instance, metadata: m})
		for set, topics := range m.Sets {
			sets[set] = topics
		}
	}
	var shards []ShardID
	for set, topics := range sets {
		if len(topics) == 0 {
			continue
		}
		for n := range partitions[topics[0]] {
			shards = append(shards, shardID(set, n))
		}
	}
	result := make(map[string][]topic.Partition)
	for id, owner := range assign(members, shards) {
		set, n, _ := id.split()
		for _, t := range sets[set] {
			result[owner] = append(result[owner], topic.Partition{Topic: t, Number: n})
		}
	}
	for _, parts := range result {
		slices.SortFunc(parts, topic.Partition.Compare)
	}
	return result
}

// assign gives each shard to a member, by the member's ID: a pure function of
// what the members say. A shard stays where it runs, else goes to the best
// copy, else to whoever has the fewest; and nobody has more than a fair share
// while another has less, so what has to move, moves. Shards that no member
// can take are left out.
func assign(members []member, shards []ShardID) map[ShardID]string {
	members = slices.Clone(members)
	slices.SortFunc(members, func(a, b member) int {
		return cmp.Or(cmp.Compare(a.instance, b.instance), cmp.Compare(a.id, b.id))
	})
	shards = slices.Clone(shards)
	slices.Sort(shards)

	result := make(map[ShardID]string, len(shards))
	load := make(map[string]int)
	var rest []ShardID

	// What runs stays. Of two that both say they run it, the one that is
	// further on does.
	for _, id := range shards {
		if best := bestOf(members, id, true); best != nil {
			result[id] = best.id
			load[best.id]++
			continue
		}
		rest = append(rest, id)
	}
	// What has a copy goes there, unless that member would have too many.
	limit := func(m member) int { return fairShare(m, members, len(shards)) }
	cold := rest[:0:0]
	for _, id := range rest {
		if best := bestOf(members, id, false); best != nil && load[best.id] < limit(*best) {
			result[id] = best.id
			load[best.id]++
			continue
		}
		cold = append(cold, id)
	}
	for _, id := range cold {
		if m := leastLoaded(members, load, id); m != nil {
			result[id] = m.id
			load[m.id]++
		}
	}
	balance(members, shards, result, load)
	return result
}

// bestOf returns the member with the best copy of the shard, of those where it
// runs or of all.
func bestOf(members []member, id ShardID, running bool) *member {
	set, _, _ := id.split()
	var best *member
	for i := range members {
		w, ok := members[i].metadata.Shards[id]
		if !ok || running && !w.Running || !members[i].reads(set) {
			continue
		}
		if best == nil || w.Next > best.metadata.Shards[id].Next {
			best = &members[i]
		}
	}
	return best
}

// fairShare is the most shards that a member has when they are spread evenly,
// by capacity.
func fairShare(m member, members []member, shards int) int {
	total := 0
	for _, o := range members {
		total += o.metadata.Capacity
	}
	return (shards*m.metadata.Capacity + total - 1) / total
}

// leastLoaded returns the member that can take the shard and has the fewest
// for its capacity.
func leastLoaded(members []member, load map[string]int, id ShardID) *member {
	set, _, _ := id.split()
	var least *member
	for i := range members {
		m := &members[i]
		if !m.reads(set) {
			continue
		}
		if least == nil || load[m.id]*least.metadata.Capacity < load[least.id]*m.metadata.Capacity {
			least = m
		}
	}
	return least
}

// balance moves shards from members that have too many to those that have too
// few: as few as there must be. Each comes from the member with the most, and
// of its shards it is the one for which the taker has the best copy.
func balance(members []member, shards []ShardID, result map[ShardID]string, load map[string]int) {
	byID := make(map[string]member, len(members))
	for _, m := range members {
		byID[m.id] = m
	}
	for range len(shards) * len(members) {
		var best struct {
			id           ShardID
			owner, taker member
			next         int64
		}
		for _, id := range shards {
			owner, ok := byID[result[id]]
			if !ok {
				continue
			}
			taker := leastLoaded(members, load, id)
			if taker == nil || taker.id == owner.id || !lighter(*taker, owner, load) {
				continue
			}
			next := int64(-1)
			if w, ok := taker.metadata.Shards[id]; ok {
				next = w.Next
			}
			heavier := load[owner.id]*best.owner.metadata.Capacity - load[best.owner.id]*owner.metadata.Capacity
			if best.id == "" || heavier > 0 || heavier == 0 && next > best.next {
				best.id, best.owner, best.taker, best.next = id, owner, *taker, next
			}
		}
		if best.id == "" {
			return
		}
		load[best.owner.id]--
		load[best.taker.id]++
		result[best.id] = best.taker.id
	}
}

// lighter says whether the taker would still have less, for its capacity, than
// the owner has, with one shard more.
func lighter(taker, owner member, load map[string]int) bool {
	return (load[taker.id]+1)*owner.metadata.Capacity < load[owner.id]*taker.metadata.Capacity
}

// advice is what comes with the offsets that are committed to the group: from
// which changelog they are, and how many partitions the input had when the
// shard's first offset was resolved.
type advice struct {
	V          int      `json:"v"`
	Changelog  topic.ID `json:"changelog"`
	Partitions int      `json:"partitions"`
}

func appendAdvice(changelogID topic.ID, partitions int) string {
	b, err := json.Marshal(advice{V: 1, Changelog: changelogID, Partitions: partitions})
	if err != nil {
		panic(err) // an ID and two numbers can be encoded
	}
	return string(b)
}

// parseAdvice returns false for what Pawl has not written.
func parseAdvice(s string) (advice, bool) {
	var a advice
	err := json.Unmarshal([]byte(s), &a)
	return a, err == nil && a.V == 1
}
