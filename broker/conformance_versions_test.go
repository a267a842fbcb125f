package broker_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
)

// visit is one version of one kind of request, sent to a target. What it needs
// is there before.
type visit struct {
	*suite
	w       *wire
	version int16
	topic   string // of one partition, with a message
	id      [16]byte
	group   string // with a committed offset
}

// visits make a request of each kind that the broker answers, in the version of
// the visit; other versions are asked of others for what has to be there first.
// What is sent is right, so every error in the answer is one.
var visits = map[kmsg.Key]func(v visit) kmsg.Request{
	kmsg.Produce: func(v visit) kmsg.Request {
		req := kmsg.NewPtrProduceRequest()
		req.Acks, req.TimeoutMillis = -1, 10_000
		p := kmsg.ProduceRequestTopicPartition{Records: plain("v").encode()}
		t := kmsg.ProduceRequestTopic{Topic: v.topic, TopicID: v.id, Partitions: []kmsg.ProduceRequestTopicPartition{p}}
		req.Topics = append(req.Topics, t)
		return req
	},
	kmsg.Fetch: func(v visit) kmsg.Request {
		req := kmsg.NewPtrFetchRequest()
		req.ReplicaID, req.ReplicaState.ID, req.MinBytes, req.MaxBytes, req.SessionEpoch = -1, -1, 1, 1<<20, -1
		p := kmsg.NewFetchRequestTopicPartition()
		p.PartitionMaxBytes, p.CurrentLeaderEpoch, p.LogStartOffset = 1<<20, -1, -1
		t := kmsg.FetchRequestTopic{Topic: v.topic, TopicID: v.id, Partitions: []kmsg.FetchRequestTopicPartition{p}}
		req.Topics = append(req.Topics, t)
		return req
	},
	kmsg.ListOffsets: func(v visit) kmsg.Request {
		req := kmsg.NewPtrListOffsetsRequest()
		req.ReplicaID, req.TimeoutMillis = -1, 10_000
		p := kmsg.NewListOffsetsRequestTopicPartition()
		p.Timestamp, p.CurrentLeaderEpoch = -1, -1
		req.Topics = []kmsg.ListOffsetsRequestTopic{{Topic: v.topic, Partitions: []kmsg.ListOffsetsRequestTopicPartition{p}}}
		return req
	},
	kmsg.Metadata: func(v visit) kmsg.Request {
		req := kmsg.NewPtrMetadataRequest()
		req.Topics = []kmsg.MetadataRequestTopic{{Topic: kmsg.StringPtr(v.topic)}}
		return req
	},
	kmsg.OffsetCommit: func(v visit) kmsg.Request {
		req := kmsg.NewPtrOffsetCommitRequest()
		req.Group, req.Generation, req.RetentionTimeMillis = v.group, -1, -1
		p := kmsg.NewOffsetCommitRequestTopicPartition()
		p.Offset = 1
		req.Topics = []kmsg.OffsetCommitRequestTopic{{Topic: v.topic, TopicID: v.id, Partitions: []kmsg.OffsetCommitRequestTopicPartition{p}}}
		return req
	},
	kmsg.OffsetFetch: func(v visit) kmsg.Request {
		req := kmsg.NewPtrOffsetFetchRequest()
		req.Group = v.group
		req.Topics = []kmsg.OffsetFetchRequestTopic{{Topic: v.topic, Partitions: []int32{0}}}
		g := kmsg.NewOffsetFetchRequestGroup()
		g.Group = v.group
		g.Topics = []kmsg.OffsetFetchRequestGroupTopic{{Topic: v.topic, TopicID: v.id, Partitions: []int32{0}}}
		req.Groups = append(req.Groups, g)
		return req
	},
	kmsg.FindCoordinator: func(v visit) kmsg.Request {
		req := kmsg.NewPtrFindCoordinatorRequest()
		req.CoordinatorKey, req.CoordinatorKeys = v.group, []string{v.group}
		return req
	},
	kmsg.JoinGroup: func(v visit) kmsg.Request {
		m := v.participant(v.fresh("g"), "")
		m.w = v.w
		if v.version >= 4 { // members are named first
			resp := query[*kmsg.JoinGroupResponse](m.w, m.joinRequest(v.version, "m"))
			v.want("join without a name", resp.ErrorCode, kerr.MemberIDRequired)
			m.id = resp.MemberID
		}
		return m.joinRequest(v.version, "m")
	},
	kmsg.SyncGroup: func(v visit) kmsg.Request {
		m := v.member()
		return m.syncRequest(map[string]string{m.id: "a"})
	},
	kmsg.Heartbeat: func(v visit) kmsg.Request {
		m := v.member()
		v.want("sync", m.sync(map[string]string{m.id: "a"}).ErrorCode, nil)
		req := kmsg.NewPtrHeartbeatRequest()
		req.Group, req.MemberID, req.Generation = m.group, m.id, m.generation
		return req
	},
	kmsg.LeaveGroup: func(v visit) kmsg.Request {
		m := v.member()
		req := kmsg.NewPtrLeaveGroupRequest()
		req.Group, req.MemberID, req.Members = m.group, m.id, []kmsg.LeaveGroupRequestMember{{MemberID: m.id}}
		return req
	},
	kmsg.DescribeGroups: func(v visit) kmsg.Request {
		req := kmsg.NewPtrDescribeGroupsRequest()
		req.Groups = []string{v.group}
		return req
	},
	kmsg.ListGroups: func(visit) kmsg.Request { return kmsg.NewPtrListGroupsRequest() },
	kmsg.ApiVersions: func(visit) kmsg.Request {
		req := kmsg.NewPtrApiVersionsRequest()
		req.ClientSoftwareName, req.ClientSoftwareVersion = "conformance", "1"
		return req
	},
	kmsg.SASLHandshake: func(visit) kmsg.Request {
		req := kmsg.NewPtrSASLHandshakeRequest()
		req.Mechanism = "PLAIN"
		return req
	},
	kmsg.SASLAuthenticate: func(visit) kmsg.Request {
		req := kmsg.NewPtrSASLAuthenticateRequest()
		req.SASLAuthBytes = []byte("\x00a\x00b")
		return req
	},
	kmsg.CreateTopics: func(v visit) kmsg.Request {
		req := kmsg.NewPtrCreateTopicsRequest()
		t := kmsg.NewCreateTopicsRequestTopic()
		t.Topic, t.NumPartitions, t.ReplicationFactor = v.fresh("made"), 1, 1
		req.TimeoutMillis, req.Topics = 10_000, append(req.Topics, t)
		return req
	},
	kmsg.DeleteTopics: func(v visit) kmsg.Request {
		name, _ := v.suite.topic(1)
		req := kmsg.NewPtrDeleteTopicsRequest()
		req.TimeoutMillis, req.TopicNames, req.Topics = 10_000, []string{name}, []kmsg.DeleteTopicsRequestTopic{{Topic: &name}}
		return req
	},
	kmsg.DeleteRecords: func(v visit) kmsg.Request {
		req := kmsg.NewPtrDeleteRecordsRequest()
		req.TimeoutMillis = 10_000
		req.Topics = []kmsg.DeleteRecordsRequestTopic{{Topic: v.topic, Partitions: []kmsg.DeleteRecordsRequestTopicPartition{{Offset: 0}}}}
		return req
	},
	kmsg.InitProducerID: func(v visit) kmsg.Request {
		req := kmsg.NewPtrInitProducerIDRequest()
		req.TransactionalID, req.TransactionTimeoutMillis = kmsg.StringPtr(v.fresh("x")), 60_000
		req.ProducerID, req.ProducerEpoch = -1, -1
		return req
	},
	kmsg.OffsetForLeaderEpoch: func(v visit) kmsg.Request {
		req := kmsg.NewPtrOffsetForLeaderEpochRequest()
		req.ReplicaID = -1
		p := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
		p.CurrentLeaderEpoch = -1
		req.Topics = []kmsg.OffsetForLeaderEpochRequestTopic{{Topic: v.topic, Partitions: []kmsg.OffsetForLeaderEpochRequestTopicPartition{p}}}
		return req
	},
	kmsg.AddPartitionsToTxn: func(v visit) kmsg.Request {
		x := v.txn(v.fresh("x"))
		req := kmsg.NewPtrAddPartitionsToTxnRequest()
		req.TransactionalID, req.ProducerID, req.ProducerEpoch = x.id, x.pid, x.epoch
		req.Topics = []kmsg.AddPartitionsToTxnRequestTopic{{Topic: v.topic, Partitions: []int32{0}}}
		v.Cleanup(func() { x.end(4, false, false) })
		return req
	},
	kmsg.AddOffsetsToTxn: func(v visit) kmsg.Request {
		x := v.txn(v.fresh("x"))
		req := kmsg.NewPtrAddOffsetsToTxnRequest()
		req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Group = x.id, x.pid, x.epoch, v.group
		return req
	},
	kmsg.EndTxn: func(v visit) kmsg.Request {
		name, _ := v.suite.topic(1)
		x := v.txn(v.fresh("x"))
		if v.version < 5 {
			v.want("add", x.add(name), nil)
		}
		v.want("produce", x.produce(map[bool]int16{true: 10, false: 12}[v.version < 5], name, "v"), nil)
		req := kmsg.NewPtrEndTxnRequest()
		req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Commit = x.id, x.pid, x.epoch, true
		return req
	},
	kmsg.TxnOffsetCommit: func(v visit) kmsg.Request {
		x := v.txn(v.fresh("x"))
		group := v.fresh("g")
		if v.version < 5 {
			v.want("add group", x.addGroup(group), nil)
		}
		req := kmsg.NewPtrTxnOffsetCommitRequest()
		req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Group, req.Generation = x.id, x.pid, x.epoch, group, -1
		p := kmsg.NewTxnOffsetCommitRequestTopicPartition()
		p.Offset = 1
		req.Topics = []kmsg.TxnOffsetCommitRequestTopic{{Topic: v.topic, TopicID: v.id, Partitions: []kmsg.TxnOffsetCommitRequestTopicPartition{p}}}
		return req
	},
	kmsg.DescribeConfigs: func(v visit) kmsg.Request {
		req := kmsg.NewPtrDescribeConfigsRequest()
		req.IncludeSynonyms, req.IncludeDocumentation = true, true
		req.Resources = []kmsg.DescribeConfigsRequestResource{{ResourceType: kmsg.ConfigResourceTypeTopic, ResourceName: v.topic}}
		return req
	},
	kmsg.AlterConfigs: func(v visit) kmsg.Request {
		req := kmsg.NewPtrAlterConfigsRequest()
		c := kmsg.AlterConfigsRequestResourceConfig{Name: "retention.ms", Value: kmsg.StringPtr("86400000")}
		req.Resources = []kmsg.AlterConfigsRequestResource{{ResourceType: kmsg.ConfigResourceTypeTopic, ResourceName: v.topic, Configs: []kmsg.AlterConfigsRequestResourceConfig{c}}}
		return req
	},
	kmsg.IncrementalAlterConfigs: func(v visit) kmsg.Request {
		req := kmsg.NewPtrIncrementalAlterConfigsRequest()
		c := kmsg.IncrementalAlterConfigsRequestResourceConfig{Name: "retention.ms", Value: kmsg.StringPtr("86400000")}
		req.Resources = []kmsg.IncrementalAlterConfigsRequestResource{{ResourceType: kmsg.ConfigResourceTypeTopic, ResourceName: v.topic, Configs: []kmsg.IncrementalAlterConfigsRequestResourceConfig{c}}}
		return req
	},
	kmsg.DescribeLogDirs: func(v visit) kmsg.Request {
		req := kmsg.NewPtrDescribeLogDirsRequest()
		req.Topics = []kmsg.DescribeLogDirsRequestTopic{{Topic: v.topic, Partitions: []int32{0}}}
		return req
	},
	kmsg.CreatePartitions: func(v visit) kmsg.Request {
		name, _ := v.suite.topic(1)
		req := kmsg.NewPtrCreatePartitionsRequest()
		req.TimeoutMillis, req.Topics = 10_000, []kmsg.CreatePartitionsRequestTopic{{Topic: name, Count: 2}}
		return req
	},
	kmsg.DeleteGroups: func(v visit) kmsg.Request {
		m := v.participant(v.fresh("g"), "")
		v.want("commit", m.commit(v.topic, 1), nil)
		req := kmsg.NewPtrDeleteGroupsRequest()
		req.Groups = []string{m.group}
		return req
	},
	kmsg.OffsetDelete: func(v visit) kmsg.Request {
		m := v.participant(v.fresh("g"), "")
		v.want("commit", m.commit(v.topic, 1), nil)
		req := kmsg.NewPtrOffsetDeleteRequest()
		req.Group, req.Topics = m.group, []kmsg.OffsetDeleteRequestTopic{{Topic: v.topic, Partitions: []kmsg.OffsetDeleteRequestTopicPartition{{Partition: 0}}}}
		return req
	},
	kmsg.DescribeCluster: func(visit) kmsg.Request { return kmsg.NewPtrDescribeClusterRequest() },
	kmsg.DescribeProducers: func(v visit) kmsg.Request {
		req := kmsg.NewPtrDescribeProducersRequest()
		req.Topics = []kmsg.DescribeProducersRequestTopic{{Topic: v.topic, Partitions: []int32{0}}}
		return req
	},
	kmsg.DescribeTransactions: func(v visit) kmsg.Request {
		req := kmsg.NewPtrDescribeTransactionsRequest()
		req.TransactionalIDs = []string{v.txn(v.fresh("x")).id}
		return req
	},
	kmsg.ListTransactions: func(visit) kmsg.Request { return kmsg.NewPtrListTransactionsRequest() },
}

// refusals are the errors that visits come to where nobody has to authenticate.
var refusals = map[kmsg.Key]map[error]bool{
	kmsg.SASLHandshake:    {kerr.IllegalSaslState: true, kerr.UnsupportedSaslMechanism: true},
	kmsg.SASLAuthenticate: {kerr.IllegalSaslState: true, kerr.SaslAuthenticationFailed: true},
}

func (v visit) fresh(what string) string { return fmt.Sprintf("%s%s%d", v.prefix, what, runs.Add(1)) }

// member is a member of a group of its own.
func (v visit) member() *participant {
	v.Helper()
	m := v.participant(v.fresh("g"), "")
	v.want("join", m.join("m").ErrorCode, nil)
	return m
}

// exchange sends a request and reads the answer, of which nothing may be left
// and nothing missing.
func (v visit) exchange(req kmsg.Request) (kmsg.Response, error) {
	if err := v.w.write(req); err != nil {
		return nil, err
	}
	resp, id, body, err := v.w.read(req)
	switch {
	case err != nil:
		return nil, err
	case id != v.w.id:
		return nil, fmt.Errorf("the answer is to request %d, want %d", id, v.w.id)
	}
	if again := resp.AppendTo(nil); len(again) != len(body) {
		return nil, fmt.Errorf("the answer has %d bytes, and what it is read as has %d", len(body), len(again))
	}
	return resp, nil
}

// codes are all error codes in an answer.
func codes(resp any) (all []int16) {
	var walk func(v reflect.Value)
	walk = func(v reflect.Value) {
		switch v.Kind() {
		case reflect.Pointer:
			if !v.IsNil() {
				walk(v.Elem())
			}
		case reflect.Slice:
			for i := range v.Len() {
				walk(v.Index(i))
			}
		case reflect.Struct:
			for i := range v.NumField() {
				if v.Type().Field(i).Name == "ErrorCode" {
					all = append(all, int16(v.Field(i).Int()))
				} else {
					walk(v.Field(i))
				}
			}
		}
	}
	walk(reflect.ValueOf(resp))
	return all
}

// Each version of each request that a target says it answers is answered, in
// that version, without an error; what this broker doesn't say it answers ends
// the connection. What Kafka and kfake answer and this broker doesn't is logged.
func TestConformEveryVersion(t *testing.T) {
	conform(t, func(s *suite) {
		v := visit{suite: s, w: s.dial()}
		v.topic, v.id = s.topic(1)
		s.want("produce", s.produce(v.w, 9, "", v.topic, v.id, 0, plain("a")).ErrorCode, nil)
		v.group = v.fresh("g")
		m := s.participant(v.group, "")
		for kind := range int8(2) { // a node that was just started makes what it keeps of groups and transactions when it is asked
			s.coordinator(v.group, kind)
		}
		if err := again(s, func() int16 { return m.commit(v.topic, 1) }); err != nil {
			s.Fatalf("commit: %v", err)
		}
		ask := kmsg.NewPtrApiVersionsRequest()
		ask.Version, ask.ClientSoftwareName, ask.ClientSoftwareVersion = 3, "conformance", "1"
		var others []string
		n := 0
		for _, k := range query[*kmsg.ApiVersionsResponse](v.w, ask).ApiKeys {
			key := kmsg.Key(k.ApiKey)
			make := visits[key]
			if make == nil {
				others = append(others, kmsg.NameForKey(k.ApiKey))
				continue
			}
			low, high := k.MinVersion, min(k.MaxVersion, kmsg.RequestForKey(k.ApiKey).MaxVersion())
			switch key {
			case kmsg.Produce:
				low = max(low, 3) // librdkafka wants to see 0, and sends none
			case kmsg.AddPartitionsToTxn:
				high = min(high, 3) // above it, brokers ask each other
			}
			for version := low; version <= high; version++ {
				n++
				v.visit(key, version, make)
			}
			if s.target != "broker" {
				continue
			}
			for _, version := range []int16{low - 1, high + 1} {
				if version >= 0 && key != kmsg.ApiVersions && !(key == kmsg.Produce && version < 3) {
					v.refused(k.ApiKey, version)
				}
			}
		}
		if s.target == "broker" && (len(others) > 0 || n < 100) {
			s.Errorf("the broker says it answers %q, which nothing here asks for, and %d versions of the rest", others, n)
		}
		s.Logf("%s: %d versions; not asked for: %s", s.target, n, strings.Join(others, " "))
	})
}

// coordinator waits until there is one of groups or of transactions.
func (s *suite) coordinator(key string, kind int8) {
	s.Helper()
	w := s.dial()
	for {
		req := kmsg.NewPtrFindCoordinatorRequest()
		req.Version, req.CoordinatorKey, req.CoordinatorType = 2, key, kind
		resp := query[*kmsg.FindCoordinatorResponse](w, req)
		if resp.ErrorCode == 0 {
			return
		}
		if s.ctx.Err() != nil {
			s.Fatalf("find the coordinator of kind %d: %v", kind, kerr.ErrorForCode(resp.ErrorCode))
		}
		pause(s.ctx, 50*time.Millisecond)
	}
}

// visit sends one version of a request until the answer is final.
func (v visit) visit(key kmsg.Key, version int16, make func(visit) kmsg.Request) {
	v.Helper()
	what := fmt.Sprintf("%s v%d", kmsg.NameForKey(int16(key)), version)
	v.version, v.w = version, v.dial()
	defer v.w.conn.Close()
	req := make(v)
	req.SetVersion(version)
	var failed error
	for range 100 { // what is going on still is waited for
		var resp kmsg.Response
		if resp, failed = v.exchange(req); failed != nil {
			break
		}
		for _, code := range codes(resp) {
			if err := kerr.ErrorForCode(code); err != nil && !refusals[key][err] {
				failed = err
			}
		}
		if !kerr.IsRetriable(failed) {
			break
		}
		pause(v.ctx, 20*time.Millisecond)
	}
	if failed != nil {
		v.Errorf("%s: %v", what, failed)
	}
}

// refused sends a version that is not advertised.
func (v visit) refused(key, version int16) {
	v.Helper()
	w := v.dial()
	defer w.conn.Close()
	if err := w.conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		v.Fatal(err)
	}
	head := binary.BigEndian.AppendUint32(nil, 10)
	head = binary.BigEndian.AppendUint16(head, uint16(key))
	head = binary.BigEndian.AppendUint16(head, uint16(version))
	head = append(head, 0, 0, 0, 1, 0xff, 0xff)
	if _, err := w.conn.Write(head); err != nil {
		v.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, w.conn); n != 0 || err != nil && !errors.Is(err, io.EOF) && !strings.Contains(err.Error(), "closed") && !strings.Contains(err.Error(), "reset") {
		v.Errorf("%s v%d is not advertised, and answered by %d bytes, %v", kmsg.NameForKey(key), version, n, err)
	}
}

// Clients of any age write by transactions, read as a group, and commit.
func TestConformOldClients(t *testing.T) {
	conform(t, func(s *suite) {
		for _, v := range []*kversion.Versions{
			kversion.V1_0_0(), kversion.V2_0_0(), kversion.V2_4_0(), kversion.V2_8_0(), kversion.V3_0_0(), kversion.V3_5_0(), kversion.V3_9_0(), kversion.V4_0_0(),
		} {
			what := v.VersionGuess()
			name, _ := s.topic(1)
			s.coordinator(name, 0)
			s.coordinator(name, 1)
			x := s.client(kgo.MaxVersions(v), kgo.TransactionalID(s.prefix+what))
			for i, end := range []kgo.TransactionEndTry{kgo.TryCommit, kgo.TryAbort, kgo.TryCommit} {
				if err := x.BeginTransaction(); err != nil {
					s.Fatalf("%s: %v", what, err)
				}
				if err := x.ProduceSync(s.ctx, &kgo.Record{Topic: name, Value: []byte{byte('a' + i)}}).FirstErr(); err != nil {
					s.Fatalf("%s: produce: %v", what, err)
				}
				if err := x.EndTransaction(s.ctx, end); err != nil {
					s.Fatalf("%s: end: %v", what, err)
				}
			}
			x.Close()
			r := s.client(kgo.MaxVersions(v), kgo.ConsumerGroup(s.prefix+"g"+what), kgo.ConsumeTopics(name), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
				kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.FetchMaxWait(100*time.Millisecond), kgo.DisableAutoCommit())
			var got string
			for len(got) < 2 {
				fs := r.PollFetches(s.ctx)
				if err := fs.Err(); err != nil {
					s.Fatalf("%s: read: %v", what, err)
				}
				fs.EachRecord(func(r *kgo.Record) { got += string(r.Value) })
			}
			if err := r.CommitUncommittedOffsets(s.ctx); err != nil || got != "ac" {
				s.Errorf("%s: read %q, want ac; commit: %v", what, got, err)
			}
			r.Close()
		}
	})
}
