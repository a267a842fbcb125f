package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/pawlstream/pawl/internal/kafka"
)

// Members are shown with what they have, also while they are there.
func TestGroupMembers(t *testing.T) {
	onClusters(t, func(t *testing.T, o *operated) {
		name, group := o.create("shared", 4, nil), o.name("sharing")
		g, err := kafka.NewGroupReader(o.kafka, kafka.GroupReaderConfig{Group: group, Topics: []string{name}})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := g.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}()
		o.publish(record(name, "x"))
		if es, _, err := g.Poll(t.Context(), 10); err != nil || len(es) != 1 {
			t.Fatalf("%d messages, %v", len(es), err)
		}
		out := o.run("", "group", "describe", group)
		if !strings.Contains(out, "classic, Stable, assigned by cooperative-sticky, 1 member\n") || !strings.Contains(out, name+" 0-3") {
			t.Errorf("group describe: %s", out)
		}
		status, _, stderr := o.try("", "offsets", "reset", "--group", group, "--to", "latest", "--yes")
		if status != exitError || !strings.Contains(stderr, "1 member of "+group) {
			t.Errorf("a reset of a group with a member: status %d, %q", status, stderr)
		}
	})
}

// Groups of Kafka's newer protocols are listed as what they are, with their
// members. The embedded broker has none of them.
func TestGroupKinds(t *testing.T) {
	onClusters(t, func(t *testing.T, o *operated) {
		if !o.real {
			return
		}
		name := o.create("kinds", 2, nil)
		cl, err := kgo.NewClient(kgo.SeedBrokers(o.brokers))
		if err != nil {
			t.Fatal(err)
		}
		defer cl.Close()
		next := kmsg.NewPtrConsumerGroupHeartbeatRequest()
		next.Group, next.MemberID, next.RebalanceTimeoutMillis = o.name("next"), "AAAAAAAAAAAAAAAAAAAAAQ", 60_000
		next.SubscribedTopicNames, next.Topics = []string{name}, []kmsg.ConsumerGroupHeartbeatRequestTopic{}
		joined, err := next.RequestWith(t.Context(), cl)
		if err == nil {
			err = kerr.ErrorForCode(joined.ErrorCode)
		}
		if err != nil {
			t.Fatalf("join a group of the consumer protocol: %v", err)
		}
		share := kmsg.NewPtrShareGroupHeartbeatRequest()
		share.GroupID, share.MemberID, share.SubscribedTopicNames = o.name("share"), "AAAAAAAAAAAAAAAAAAAAAg", []string{name}
		shared, err := share.RequestWith(t.Context(), cl)
		if err == nil {
			err = kerr.ErrorForCode(shared.ErrorCode)
		}
		if err != nil {
			t.Fatalf("join a share group: %v", err)
		}
		var rows []groupRow
		if err := json.Unmarshal([]byte(o.run("", "group", "list", "--prefix", o.prefix, "-o", "json")), &rows); err != nil {
			t.Fatal(err)
		}
		kinds := make(map[string]string)
		for _, r := range rows {
			kinds[r.Group] = r.Kind
		}
		if kinds[o.name("next")] != kafka.GroupConsumer || kinds[o.name("share")] != kafka.GroupShare {
			t.Errorf("kinds are %v", kinds)
		}
		for _, group := range []string{o.name("next"), o.name("share")} {
			if out := o.run("", "group", "describe", group); !strings.Contains(out, "1 member\n") {
				t.Errorf("group describe %s: %s", group, out)
			}
			o.run("", "offsets", "show", "--group", group)
		}
	})
}
