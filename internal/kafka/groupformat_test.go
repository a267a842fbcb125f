package kafka

import (
	"bytes"
	"maps"
	"slices"
	"testing"

	"github.com/pawlstream/pawl/topic"
	"pgregory.net/rapid"
)

var (
	genName = rapid.StringMatching(`[a-z0-9._-]{1,20}`)
	genPart = rapid.Custom(func(t *rapid.T) topic.Partition {
		return topic.Partition{Topic: genName.Draw(t, "topic"), Number: rapid.Int32Min(0).Draw(t, "number")}
	})
	genCount = rapid.MapOf(genName, rapid.Int32Min(0))
)

func TestAssignmentRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		parts := rapid.SliceOfDistinct(genPart, func(p topic.Partition) topic.Partition { return p }).Draw(t, "partitions")
		counts := genCount.Draw(t, "counts")
		gotParts, gotCounts, err := decodeAssignment(encodeAssignment(parts, counts))
		if err != nil {
			t.Fatal(err)
		}
		slices.SortFunc(parts, topic.Partition.Compare)
		if !slices.Equal(gotParts, parts) {
			t.Errorf("partitions came back as %v, want %v", gotParts, parts)
		}
		if !maps.Equal(gotCounts, counts) {
			t.Errorf("counts came back as %v, want %v", gotCounts, counts)
		}
	})
}

func TestSubscriptionRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		topics := rapid.SliceOfDistinct(genName, func(s string) string { return s }).Draw(t, "topics")
		user := rapid.SliceOf(rapid.Byte()).Draw(t, "metadata")
		gotTopics, gotUser, err := decodeSubscription(encodeSubscription(topics, user, -1))
		if err != nil {
			t.Fatal(err)
		}
		if want := slices.Sorted(slices.Values(topics)); !slices.Equal(gotTopics, want) || !bytes.Equal(gotUser, user) {
			t.Errorf("came back as %q and %x, want %q and %x", gotTopics, gotUser, want, user)
		}
	})
}

// What a later version appends is passed over.
func TestCountsOfLaterVersion(t *testing.T) {
	want := map[string]int32{"a": 3, "b": 0}
	b := append(encodeCounts(want), 1, 2, 3)
	b[0] = countsVersion + 1
	if got, err := decodeCounts(b); err != nil || !maps.Equal(got, want) {
		t.Errorf("decoded %v, %v, want %v", got, err, want)
	}
}

func FuzzGroupFormats(f *testing.F) {
	f.Add(encodeSubscription([]string{"a", "b"}, []byte("x"), 3))
	f.Add(encodeAssignment([]topic.Partition{{Topic: "a"}, {Topic: "a", Number: 1}}, map[string]int32{"a": 2}))
	f.Add(encodeCounts(map[string]int32{"a": 1, "bb": 22}))
	f.Add([]byte{countsVersion, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		// They end, within memory that the bytes account for, and what they
		// accept they give back.
		if topics, user, err := decodeSubscription(b); err == nil {
			again, userAgain, err := decodeSubscription(encodeSubscription(topics, user, -1))
			if err != nil || !slices.Equal(again, slices.Sorted(slices.Values(topics))) || !bytes.Equal(userAgain, user) {
				t.Errorf("%x decodes to %q and %x, and then to %q and %x, %v", b, topics, user, again, userAgain, err)
			}
		}
		if _, counts, err := decodeAssignment(b); err == nil && len(b) > 0 {
			if again, err := decodeCounts(encodeCounts(counts)); err != nil || !maps.Equal(again, counts) {
				t.Errorf("%x has counts %v, and then %v, %v", b, counts, again, err)
			}
		}
		if counts, err := decodeCounts(b); err == nil && len(counts) > len(b) {
			t.Errorf("%d bytes gave %d counts", len(b), len(counts))
		}
	})
}
