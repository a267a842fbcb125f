package consumer

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

func someShards(n int) []ShardID {
	shards := make([]ShardID, n)
	for i := range shards {
		shards[i] = shardID("words", int32(i))
	}
	return shards
}

func someMember(name string) member {
	return member{id: name, instance: name, metadata: memberMetadata{V: 1, Formats: []int{1}, Capacity: 1, Sets: map[string][]string{"words": {"words"}}, Shards: map[ShardID]warmth{}}}
}

// However members come and go, the assignment is whole, balanced, the same for
// the same input, moves only what has to move, and never gives a shard to a
// cold member while one with a copy has room.
func TestAssignProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shards := someShards(rapid.IntRange(0, 20).Draw(t, "shards"))
		members := []member{someMember("m0")}
		running := map[ShardID]string{}
		for round := range 6 {
			// Some join, some leave.
			if rapid.Bool().Draw(t, "joins") {
				members = append(members, someMember(fmt.Sprintf("m%d", round+1)))
			}
			if len(members) > 1 && rapid.Bool().Draw(t, "leaves") {
				i := rapid.IntRange(0, len(members)-1).Draw(t, "who")
				members = slices.Delete(members, i, i+1)
			}
			names := map[string]bool{}
			for i := range members {
				names[members[i].id] = true
				for id, w := range members[i].metadata.Shards {
					w.Running = running[id] == members[i].id
					members[i].metadata.Shards[id] = w
				}
			}
			before := maps.Clone(running)
			maps.DeleteFunc(before, func(_ ShardID, owner string) bool { return !names[owner] })

			got := assign(members, shards)
			shuffled := rapid.Permutation(members).Draw(t, "order")
			if again := assign(shuffled, shards); !maps.Equal(got, again) {
				t.Fatalf("depends on the order of the members:\n%v\n%v", got, again)
			}
			load := map[string]int{}
			for _, id := range shards {
				if !names[got[id]] {
					t.Fatalf("shard %s goes to %q", id, got[id])
				}
				load[got[id]]++
			}
			least, most := len(shards), 0
			for name := range names {
				least, most = min(least, load[name]), max(most, load[name])
			}
			if len(shards) > 0 && most-least > 1 {
				t.Fatalf("not balanced: %v", load)
			}
			// As few as possible move: every member keeps what it ran, up to
			// its share.
			kept, could := 0, 0
			ran := map[string]int{}
			for id, owner := range before {
				ran[owner]++
				if got[id] == owner {
					kept++
				}
			}
			low, extra := len(shards)/len(members), len(shards)%len(members)
			for _, n := range slices.Backward(slices.Sorted(maps.Values(ran))) {
				limit := low
				if extra > 0 && n > low {
					limit, extra = low+1, extra-1
				}
				could += min(n, limit)
			}
			if kept < could {
				t.Fatalf("%d of %d running shards stay, %d could:\nbefore %v\nafter  %v", kept, len(before), could, before, got)
			}
			running = got
			for i := range members {
				for id, owner := range got {
					if owner == members[i].id {
						members[i].metadata.Shards[id] = warmth{Next: int64(round*100 + 1)}
					}
				}
			}
		}
	})
}

func TestAssignGoesToTheBestCopy(t *testing.T) {
	a, b, c := someMember("a"), someMember("b"), someMember("c")
	a.metadata.Shards["words-000"] = warmth{Next: 5}
	b.metadata.Shards["words-000"] = warmth{Next: 9}
	got := assign([]member{a, b, c}, someShards(3))
	if got["words-000"] != "b" {
		t.Errorf("words-000 goes to %s, want b, which has the best copy: %v", got["words-000"], got)
	}
}

// A member that can't read the format of changelogs, or does not consume the
// set, is given none of its shards.
func TestAssignSkipsMembersThatCannotRead(t *testing.T) {
	a, b, c := someMember("a"), someMember("b"), someMember("c")
	b.metadata.Formats = []int{2}
	c.metadata.Sets = map[string][]string{"other": {"other"}}
	for id, owner := range assign([]member{a, b, c}, someShards(4)) {
		if owner != "a" {
			t.Errorf("%s goes to %s", id, owner)
		}
	}
}

func TestAssignGroupKeepsSetsTogether(t *testing.T) {
	m := memberMetadata{V: 1, Formats: []int{1}, Capacity: 1, Sets: map[string][]string{"joined": {"clicks", "views"}}}
	infos := []kafka.MemberInfo{{ID: "x", Instance: "x", Metadata: m.marshal()}, {ID: "y", Instance: "y", Metadata: m.marshal()}}
	got := assignGroup(infos, map[string]int32{"clicks": 4, "views": 4}, func(instance string, err error) { t.Errorf("member %s is passed over: %v", instance, err) })
	for n := range int32(4) {
		for member, parts := range got {
			clicks := slices.Contains(parts, topic.Partition{Topic: "clicks", Number: n})
			views := slices.Contains(parts, topic.Partition{Topic: "views", Number: n})
			if clicks != views {
				t.Errorf("member %s has partition %d of clicks %v and of views %v", member, n, clicks, views)
			}
		}
	}
	if len(got["x"]) != 4 || len(got["y"]) != 4 {
		t.Errorf("not shared evenly: %v", got)
	}
}

// The format of the metadata is frozen.
func TestMemberMetadataFormat(t *testing.T) {
	m := memberMetadata{V: 1, Formats: []int{1}, Capacity: 1, Sets: map[string][]string{"words": {"words"}}, Shards: map[ShardID]warmth{"words-003": {Next: 12, Running: true}, "words-001": {Next: 7}}}
	want := `{"v":1,"formats":[1],"capacity":1,"sets":{"words":["words"]},"shards":{"words-001":{"next":7},"words-003":{"next":12,"running":true}}}`
	if got := string(m.marshal()); got != want {
		t.Errorf("metadata:\n got %s\nwant %s", got, want)
	}
	if got, want := appendAdvice(topic.ID{1}, 8), `{"v":1,"changelog":"AQAAAAAAAAAAAAAAAAAAAA","partitions":8}`; got != want {
		t.Errorf("advice: got %s, want %s", got, want)
	}
	if _, err := parseMetadata([]byte(`{"v":2}`)); err == nil {
		t.Error("metadata of a newer format is taken")
	}
	if _, err := parseMetadata([]byte(`{"v":1,"added":"later"}`)); err != nil {
		t.Errorf("metadata with an unknown member: %v", err)
	}
}

func FuzzParseMetadata(f *testing.F) {
	f.Add(someMember("a").metadata.marshal())
	f.Add([]byte(`{"v":2,"sets":{"words":["words"]}}`))
	f.Add([]byte(`{"v":1,"formats":[1],"capacity":4611686018427387904,"sets":{"words":["words"]}}`))
	f.Add([]byte(`{"v":1,"capacity":-1,"shards":{"x":{}},"sets":{"":[]}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parseMetadata(b)
		parseAdvice(string(b))
		// Whatever members say, the leader does not fall over it, and the shards
		// are assigned.
		say := []kafka.MemberInfo{{ID: "b", Instance: "b", Metadata: someMember("b").metadata.marshal()}}
		for i := range 4 {
			say = append(say, kafka.MemberInfo{ID: fmt.Sprint(i), Metadata: b})
		}
		n := 0
		for _, parts := range assignGroup(say, map[string]int32{"words": 3}, func(string, error) {}) {
			for _, p := range parts {
				if p.Topic == "words" {
					n++
				}
			}
		}
		if n < 3 && err != nil {
			t.Errorf("%s: %d of 3 shards are assigned", b, n)
		}
		if err != nil {
			return
		}
		if m.Capacity <= 0 || m.Capacity > capacityMax {
			t.Errorf("capacity %d", m.Capacity)
		}
	})
}
