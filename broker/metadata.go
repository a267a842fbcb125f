package broker

import (
	"maps"
	"net"
	"slices"
	"strconv"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// noOperations is what a broker without access control says of what a client
// is authorized to do.
const noOperations = -1 << 31

// addressFor is what a client is told to connect to: the way it came.
func (b *Broker) addressFor(c *connection) (host string, port int32) {
	addr := inMemory
	if !c.inside {
		addr = b.address
	}
	host, p, err := net.SplitHostPort(addr)
	if err != nil {
		return addr, 0
	}
	n, err := strconv.ParseUint(p, 10, 16)
	if err != nil {
		return host, 0
	}
	return host, int32(n)
}

// topicOfLocked finds a topic by its name or, if it has none, by its ID.
func (b *Broker) topicOfLocked(name string, id [16]byte) *topic {
	if name != "" {
		return b.mu.topics[name]
	}
	return b.mu.topicIDs[id]
}

func (b *Broker) partitionLocked(name string, number int32) *partition {
	t := b.mu.topics[name]
	if t == nil || number < 0 || int(number) >= len(t.partitions) {
		return nil
	}
	return t.partitions[number]
}

func (b *Broker) metadata(c *connection, req *kmsg.MetadataRequest) answer {
	resp := req.ResponseKind().(*kmsg.MetadataResponse)
	rb := kmsg.NewMetadataResponseBroker()
	rb.NodeID = nodeID
	rb.Host, rb.Port = b.addressFor(c)
	resp.Brokers = append(resp.Brokers, rb)
	resp.ClusterID, resp.ControllerID = kmsg.StringPtr(b.id), nodeID
	resp.AuthorizedOperations = noOperations

	b.mu.Lock()
	defer b.mu.Unlock()
	var o op
	add := func(t *topic) {
		rt := kmsg.NewMetadataResponseTopic()
		rt.Topic, rt.TopicID, rt.AuthorizedOperations = kmsg.StringPtr(t.name), t.id, noOperations
		for _, p := range t.partitions {
			rp := kmsg.NewMetadataResponseTopicPartition()
			rp.Partition, rp.Leader, rp.LeaderEpoch = p.number, nodeID, leaderEpoch
			rp.Replicas, rp.ISR, rp.OfflineReplicas = []int32{nodeID}, []int32{nodeID}, []int32{}
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	missing := func(name *string, id [16]byte, code int16) {
		rt := kmsg.NewMetadataResponseTopic()
		rt.Topic, rt.TopicID, rt.AuthorizedOperations, rt.ErrorCode = name, id, noOperations, code
		if name == nil && req.Version < 12 {
			rt.Topic = kmsg.StringPtr("")
		}
		resp.Topics = append(resp.Topics, rt)
	}
	if req.Topics == nil || req.Version == 0 && len(req.Topics) == 0 {
		for _, name := range slices.Sorted(maps.Keys(b.mu.topics)) {
			add(b.mu.topics[name])
		}
		return answer{resp: resp, round: b.mu.topicRound}
	}
	for _, q := range req.Topics {
		if q.Topic == nil {
			if t := b.mu.topicIDs[q.TopicID]; t != nil {
				add(t)
			} else {
				missing(nil, q.TopicID, kerr.UnknownTopicID.Code)
			}
			continue
		}
		t := b.mu.topics[*q.Topic]
		switch {
		case t != nil:
			add(t)
		case checkTopicName(*q.Topic) != nil:
			missing(q.Topic, [16]byte{}, kerr.InvalidTopicException.Code)
		case (req.Version < 4 || req.AllowAutoTopicCreation) && b.settings.bool("auto.create.topics.enable") && !b.outOfSpace() && b.collidingLocked(*q.Topic) == "":
			add(b.createTopicLocked(*q.Topic, int32(b.settings.number("num.partitions")), map[string]string{}, &o))
		default:
			missing(q.Topic, [16]byte{}, kerr.UnknownTopicOrPartition.Code)
		}
	}
	if len(o.changes) > 0 {
		return answer{resp: resp, round: b.stageLocked(&o)}
	}
	return answer{resp: resp, round: b.mu.topicRound}
}

func (b *Broker) describeCluster(c *connection, req *kmsg.DescribeClusterRequest) answer {
	resp := req.ResponseKind().(*kmsg.DescribeClusterResponse)
	if req.EndpointType > 1 {
		resp.ErrorCode = kerr.UnsupportedEndpointType.Code
		return answer{resp: resp}
	}
	rb := kmsg.NewDescribeClusterResponseBroker()
	rb.NodeID = nodeID
	rb.Host, rb.Port = b.addressFor(c)
	resp.Brokers = append(resp.Brokers, rb)
	resp.EndpointType = 1
	resp.ClusterID, resp.ControllerID, resp.ClusterAuthorizedOperations = b.id, nodeID, noOperations
	return answer{resp: resp}
}

func (b *Broker) describeLogDirs(_ *connection, req *kmsg.DescribeLogDirsRequest) answer {
	resp := req.ResponseKind().(*kmsg.DescribeLogDirsResponse)
	rd := kmsg.NewDescribeLogDirsResponseDir()
	rd.Dir, rd.TotalBytes, rd.UsableBytes = b.dir, -1, -1
	if usage, err := b.config.fs.GetDiskUsage(b.dir); err == nil {
		rd.TotalBytes, rd.UsableBytes = int64(usage.TotalBytes), int64(usage.AvailBytes)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	wanted := func(name string, number int32) bool {
		if req.Topics == nil {
			return true
		}
		for _, t := range req.Topics {
			if t.Topic == name && slices.Contains(t.Partitions, number) {
				return true
			}
		}
		return false
	}
	for _, name := range slices.Sorted(maps.Keys(b.mu.topics)) {
		rt := kmsg.NewDescribeLogDirsResponseDirTopic()
		rt.Topic = name
		for _, p := range b.mu.topics[name].partitions {
			if wanted(name, p.number) {
				rp := kmsg.NewDescribeLogDirsResponseDirTopicPartition()
				rp.Partition, rp.Size = p.number, p.bytes()
				rt.Partitions = append(rt.Partitions, rp)
			}
		}
		if len(rt.Partitions) > 0 {
			rd.Topics = append(rd.Topics, rt)
		}
	}
	resp.Dirs = append(resp.Dirs, rd)
	return answer{resp: resp}
}
