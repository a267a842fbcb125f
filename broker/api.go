package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// An answer is what a request comes to. Its response is sent once the round is
// on disk. An answer without a response ends the connection.
type answer struct {
	resp    kmsg.Response
	round   *round
	wait    func(ctx context.Context) answer // instead of a response, what gives an answer later
	silent  bool                             // the client wants no response
	last    bool                             // the connection ends with it
	release func()                           // called when the response is sent, or can't be
	beside  func(ctx context.Context)        // called while it is sent, and while the client looks at it
}

// An api is a kind of request, and the versions of it that are answered. What
// is not here is not advertised.
type api struct {
	min, max int16
	handle   func(*Broker, *connection, kmsg.Request) answer
	before   bool // it is answered before the client has said who it is
}

func on[R kmsg.Request](min, max int16, handle func(*Broker, *connection, R) answer) api {
	return api{min: min, max: max, handle: func(b *Broker, c *connection, req kmsg.Request) answer {
		return handle(b, c, req.(R))
	}}
}

func (a api) anybody() api {
	a.before = true
	return a
}

var apis map[int16]api

func init() { // apiVersions looks at the table that it is in
	apis = map[int16]api{
		int16(kmsg.Produce):                 on(3, 13, (*Broker).produce),
		int16(kmsg.Fetch):                   on(4, 17, (*Broker).fetch),
		int16(kmsg.ListOffsets):             on(1, 10, (*Broker).listOffsets),
		int16(kmsg.Metadata):                on(0, 13, (*Broker).metadata),
		int16(kmsg.OffsetCommit):            on(2, 9, (*Broker).offsetCommit),
		int16(kmsg.OffsetFetch):             on(1, 9, (*Broker).offsetFetch),
		int16(kmsg.FindCoordinator):         on(0, 6, (*Broker).findCoordinator),
		int16(kmsg.JoinGroup):               on(0, 9, (*Broker).joinGroup),
		int16(kmsg.Heartbeat):               on(0, 4, (*Broker).heartbeat),
		int16(kmsg.LeaveGroup):              on(0, 5, (*Broker).leaveGroup),
		int16(kmsg.SyncGroup):               on(0, 5, (*Broker).syncGroup),
		int16(kmsg.DescribeGroups):          on(0, 6, (*Broker).describeGroups),
		int16(kmsg.ListGroups):              on(0, 5, (*Broker).listGroups),
		int16(kmsg.SASLHandshake):           on(0, 1, (*Broker).saslHandshake).anybody(),
		int16(kmsg.ApiVersions):             on(0, 4, (*Broker).apiVersions).anybody(),
		int16(kmsg.CreateTopics):            on(2, 7, (*Broker).createTopics),
		int16(kmsg.DeleteTopics):            on(1, 6, (*Broker).deleteTopics),
		int16(kmsg.DeleteRecords):           on(0, 2, (*Broker).deleteRecords),
		int16(kmsg.InitProducerID):          on(0, 5, (*Broker).initProducerID),
		int16(kmsg.OffsetForLeaderEpoch):    on(2, 4, (*Broker).offsetForLeaderEpoch),
		int16(kmsg.AddPartitionsToTxn):      on(0, 3, (*Broker).addPartitionsToTxn),
		int16(kmsg.AddOffsetsToTxn):         on(0, 4, (*Broker).addOffsetsToTxn),
		int16(kmsg.EndTxn):                  on(0, 5, (*Broker).endTxn),
		int16(kmsg.TxnOffsetCommit):         on(0, 5, (*Broker).txnOffsetCommit),
		int16(kmsg.DescribeConfigs):         on(1, 4, (*Broker).describeConfigs),
		int16(kmsg.AlterConfigs):            on(0, 2, (*Broker).alterConfigs),
		int16(kmsg.DescribeLogDirs):         on(1, 4, (*Broker).describeLogDirs),
		int16(kmsg.SASLAuthenticate):        on(0, 2, (*Broker).saslAuthenticate).anybody(),
		int16(kmsg.CreatePartitions):        on(0, 3, (*Broker).createPartitions),
		int16(kmsg.DeleteGroups):            on(0, 2, (*Broker).deleteGroups),
		int16(kmsg.IncrementalAlterConfigs): on(0, 1, (*Broker).incrementalAlterConfigs),
		int16(kmsg.OffsetDelete):            on(0, 0, (*Broker).offsetDelete),
		int16(kmsg.DescribeCluster):         on(0, 2, (*Broker).describeCluster),
		int16(kmsg.DescribeProducers):       on(0, 0, (*Broker).describeProducers),
		int16(kmsg.DescribeTransactions):    on(0, 0, (*Broker).describeTransactions),
		int16(kmsg.ListTransactions):        on(0, 1, (*Broker).listTransactions),
	}
}

// transactionFeature is the level of the transaction protocol: 2, in which the
// broker adds partitions by itself and every end raises the epoch.
const transactionFeature = 2

func (b *Broker) apiVersions(c *connection, req *kmsg.ApiVersionsRequest) answer {
	resp := req.ResponseKind().(*kmsg.ApiVersionsResponse)
	for key := int16(0); key < 128; key++ {
		a, ok := apis[key]
		if !ok {
			continue
		}
		k := kmsg.NewApiVersionsResponseApiKey()
		k.ApiKey, k.MinVersion, k.MaxVersion = key, a.min, a.max
		if key == int16(kmsg.Produce) {
			// As Kafka 4 does: librdkafka takes a broker without version 0 for
			// one that knows no compression. It never sends one.
			k.MinVersion = 0
		}
		resp.ApiKeys = append(resp.ApiKeys, k)
	}
	if req.Version >= 3 {
		s := kmsg.NewApiVersionsResponseSupportedFeature()
		s.Name, s.MinVersion, s.MaxVersion = "transaction.version", 0, transactionFeature
		resp.SupportedFeatures = append(resp.SupportedFeatures, s)
		f := kmsg.NewApiVersionsResponseFinalizedFeature()
		f.Name, f.MinVersionLevel, f.MaxVersionLevel = "transaction.version", transactionFeature, transactionFeature
		resp.FinalizedFeatures = append(resp.FinalizedFeatures, f)
		resp.FinalizedFeaturesEpoch = 1
	}
	return answer{resp: resp}
}

// unsupportedVersions answers a client that asks for versions in a version that
// is not known, in the first one, which every client reads.
func (b *Broker) unsupportedVersions(c *connection) answer {
	req := kmsg.NewPtrApiVersionsRequest()
	req.Version = 0
	a := b.apiVersions(c, req)
	a.resp.(*kmsg.ApiVersionsResponse).ErrorCode = kerr.UnsupportedVersion.Code
	return a
}
