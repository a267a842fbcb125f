package messaging_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/pawlstream/pawl/cluster"
	"github.com/pawlstream/pawl/messaging"
)

// Items are read in order and acked in any order; the level is that of the last
// one up to which all are acked.
func ExampleNewAckManager() {
	acks := messaging.NewAckManager(1000)
	for _, id := range []int64{0, 1, 2, 7} {
		if err := acks.ReadItem(id); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println(acks.AckItem(1), acks.AckItem(7), acks.AckItem(0), acks.AckItem(2))
	// Output: -1 -1 1 7
}

// A worker that sends mails: what can't be decoded is set aside at once, what
// the service is too busy for is tried again in a while, and everything else
// that fails by the policy.
func ExampleRun() {
	type mail struct{ To string }
	errBusy := errors.New("busy")
	send := func(context.Context, mail) error { return nil }

	err := messaging.Run(context.Background(), messaging.Config{
		Cluster: cluster.Cluster{Brokers: []string{"localhost:9092"}}, Topic: "mails", Application: "shop",
	}, messaging.JSON(func(ctx context.Context, m mail, d messaging.Delivery) error {
		err := send(ctx, m)
		if errors.Is(err, errBusy) {
			return messaging.RetryAfter(time.Minute, err)
		}
		return err
	}))
	if err != nil {
		log.Fatal(err)
	}
}
