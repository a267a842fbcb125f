package messaging

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/pawlstream/pawl/internal/kafka"
	"github.com/pawlstream/pawl/topic"
)

// claims is what a member tells the leader when it joins: a JSON object. Fields
// that a reader does not know are passed over; a newer format is refused.
type claims struct {
	V int `json:"v"`

	// ID is the member's ID when it was given the partitions. The claims of a
	// member that has become another one since are void: it was taken for gone.
	ID string `json:"id,omitempty"`

	// Owned are the partitions that it has and has not let go.
	Owned []int32 `json:"owned,omitempty"`

	// Admin is where its admin API is, for tools.
	Admin string `json:"admin,omitempty"`
}

const claimsFormat = 1

func (c claims) marshal() []byte {
	b, err := json.Marshal(c)
	if err != nil {
		panic(err) // strings and numbers can be encoded
	}
	return b
}

func parseClaims(b []byte) (claims, error) {
	var c claims
	if err := json.Unmarshal(b, &c); err != nil {
		return claims{}, fmt.Errorf("a member's claims: %w", err)
	}
	if c.V != claimsFormat {
		return claims{}, fmt.Errorf("a member's claims are of format %d, and this process reads %d", c.V, claimsFormat)
	}
	return c, nil
}

// assign spreads the partitions evenly over the members. What a member has it
// keeps, as far as that is even. A partition that is to move is given to nobody
// until its owner has let it go and joined again:
//
//	A has 0 1 2 3, B joins ──► A: 0 1, B: –      A drains 2 and 3
//	A joins again          ──► A: 0 1, B: 2 3
//
// So a partition never has two owners, and who has it stays its owner through a
// rebalance.
func assign(name string, members []kafka.MemberInfo, partitions int32) (map[string][]topic.Partition, error) {
	type share struct {
		id    string
		owned []int32
	}
	var shares []*share
	owner := make(map[int32]*share)
	for _, m := range members {
		if !slices.Contains(m.Topics, name) {
			continue
		}
		c, err := parseClaims(m.Metadata)
		if err != nil {
			return nil, fmt.Errorf("member %s: %w", m.ID, err)
		}
		s := &share{id: m.ID}
		shares = append(shares, s)
		if c.ID != m.ID {
			continue
		}
		for _, n := range c.Owned {
			if n >= 0 && n < partitions && owner[n] == nil {
				owner[n] = s
				s.owned = append(s.owned, n)
			}
		}
	}
	out := make(map[string][]topic.Partition, len(shares))
	if len(shares) == 0 {
		return out, nil
	}
	// Who has most may have one more, where it does not come out even.
	slices.SortStableFunc(shares, func(a, b *share) int { return cmp.Compare(len(b.owned), len(a.owned)) })
	least, more := int(partitions)/len(shares), int(partitions)%len(shares)
	var free []int32
	for n := range partitions {
		if owner[n] == nil {
			free = append(free, n)
		}
	}
	for i, s := range shares {
		quota := least
		if i < more {
			quota++
		}
		slices.Sort(s.owned)
		keep := s.owned[:min(len(s.owned), quota)]
		take := min(quota-len(keep), len(free))
		for _, n := range append(slices.Clip(keep), free[:take]...) {
			out[s.id] = append(out[s.id], topic.Partition{Topic: name, Number: n})
		}
		free = free[take:]
	}
	return out, nil
}
