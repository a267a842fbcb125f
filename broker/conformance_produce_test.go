package broker_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// What is written in any version is read in any version.
func TestConformProduceFetchVersions(t *testing.T) {
	conform(t, func(s *suite) {
		name, id := s.topic(1)
		w := s.dial()
		var offset int64
		for v := int16(3); v <= 13; v++ {
			topic := name
			if v >= 13 {
				topic = ""
			}
			got := s.produce(w, v, "", topic, id, 0, plain(fmt.Sprint("v", v)))
			s.want(fmt.Sprintf("produce v%d", v), got.ErrorCode, nil)
			if got.BaseOffset != offset {
				s.Errorf("produce v%d: offset %d, want %d", v, got.BaseOffset, offset)
			}
			offset++
		}
		for v := int16(4); v <= 17; v++ {
			topic := name
			if v >= 13 {
				topic = ""
			}
			got := s.fetch(w, v, topic, id, 0, 0, 0)
			s.want(fmt.Sprintf("fetch v%d", v), got.ErrorCode, nil)
			if got.HighWatermark != offset || len(got.RecordBatches) == 0 {
				s.Errorf("fetch v%d: high watermark %d and %d bytes, want %d and some", v, got.HighWatermark, len(got.RecordBatches), offset)
			}
		}
	})
}

func TestConformCodecs(t *testing.T) {
	conform(t, func(s *suite) {
		name, _ := s.topic(1)
		var want []string
		for i, codec := range []kgo.CompressionCodec{kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression()} {
			cl := s.client(kgo.ProducerBatchCompression(codec))
			var recs []*kgo.Record
			for j := range 200 {
				v := fmt.Sprintf("codec %d record %d, and something that can be compressed", i, j)
				want = append(want, v)
				recs = append(recs, &kgo.Record{Topic: name, Value: []byte(v)})
			}
			if err := cl.ProduceSync(s.ctx, recs...).FirstErr(); err != nil {
				s.Fatalf("codec %d: %v", i, err)
			}
		}
		if got := s.read(name, 0, 1); !slices.Equal(got, want) {
			s.Errorf("read %d values, want %d", len(got), len(want))
		}
	})
}

// The batch comes back as it was sent, but for its offset and leader epoch.
func TestConformUntouched(t *testing.T) {
	conform(t, func(s *suite) {
		name, id := s.topic(1)
		w := s.dial()
		raw := plain("a", "b").encode()
		s.want("produce", s.produceBytes(w, 9, "", name, id, 0, slices.Clone(raw)).ErrorCode, nil)
		got := s.fetch(w, 12, name, id, 0, 0, 0).RecordBatches
		if len(got) != len(raw) || !slices.Equal(got[16:], raw[16:]) {
			s.Errorf("fetched % x, want % x", got, raw)
		}
	})
}

func TestConformBadBatches(t *testing.T) {
	conform(t, func(s *suite) {
		name, id := s.topic(1)
		compacted, compactedID := s.topic(1, "cleanup.policy", "compact")
		small, smallID := s.topic(1, "max.message.bytes", "200")
		w := s.dial()
		flawed := plain("a")
		flawed.crc = 1
		s.want("wrong checksum", s.produce(w, 9, "", name, id, 0, flawed).ErrorCode, kerr.CorruptMessage)
		s.want("two batches", s.produceBytes(w, 9, "", name, id, 0, append(plain("a").encode(), plain("b").encode()...)).ErrorCode, kerr.InvalidRecord)
		many := plain("a")
		many.records = 3
		s.want("fewer records than it says", s.produce(w, 9, "", name, id, 0, many).ErrorCode, kerr.InvalidRecord)
		control := plain("a")
		control.control = true
		s.want("a control batch", s.produce(w, 9, "", name, id, 0, control).ErrorCode, kerr.InvalidRecord)
		keyless := plain("a")
		keyless.keyless = true
		s.want("no key in a compacted topic", s.produce(w, 9, "", compacted, compactedID, 0, keyless).ErrorCode, kerr.InvalidRecord)
		s.want("too large", s.produce(w, 9, "", small, smallID, 0, plain(string(make([]byte, 300)))).ErrorCode, kerr.MessageTooLarge)
		future := plain("a", "b")
		future.firstTime = time.Now().UnixMilli()
		future.times = []int64{0, 2 * time.Hour.Milliseconds()}
		got := s.produce(w, 9, "", name, id, 0, future)
		s.want("a timestamp of two hours from now", got.ErrorCode, kerr.InvalidTimestamp)
		if len(got.ErrorRecords) != 1 || got.ErrorRecords[0].RelativeOffset != 1 {
			s.Errorf("the record is not named: %v", got.ErrorRecords)
		}
		s.want("no such partition", s.produce(w, 9, "", name, id, 7, plain("a")).ErrorCode, kerr.UnknownTopicOrPartition)
		s.want("no such topic", s.produce(w, 9, "", name+"x", id, 0, plain("a")).ErrorCode, kerr.UnknownTopicOrPartition)
		s.want("no such topic ID", s.produce(w, 13, "", "", [16]byte{1}, 0, plain("a")).ErrorCode, kerr.UnknownTopicID)
		if got := s.listOffset(w, name, 0, -1, 7).Offset; got != 0 {
			s.Errorf("the end is at %d, want 0: nothing was taken", got)
		}
	})
}

func (s *suite) initProducer(w *wire, txn string, pid int64, epoch int16, timeout int32) *kmsg.InitProducerIDResponse {
	s.Helper()
	var resp *kmsg.InitProducerIDResponse
	_ = again(s, func() int16 { // the caller looks at it
		req := kmsg.NewPtrInitProducerIDRequest()
		req.Version, req.ProducerID, req.ProducerEpoch, req.TransactionTimeoutMillis = 5, pid, epoch, timeout
		if txn != "" {
			req.TransactionalID = kmsg.StringPtr(txn)
		}
		resp = query[*kmsg.InitProducerIDResponse](w, req)
		return resp.ErrorCode
	})
	return resp
}

func TestConformIdempotence(t *testing.T) {
	conform(t, func(s *suite) {
		name, id := s.topic(1)
		w := s.dial()
		init := s.initProducer(w, "", -1, -1, 0)
		s.want("init", init.ErrorCode, nil)
		write := func(what string, epoch int16, seq int32, want error, offset int64, values ...string) {
			s.Helper()
			got := s.produce(w, 9, "", name, id, 0, sent{pid: init.ProducerID, epoch: epoch, seq: seq, values: values})
			s.want(what, got.ErrorCode, want)
			if want == nil && got.BaseOffset != offset {
				s.Errorf("%s: offset %d, want %d", what, got.BaseOffset, offset)
			}
		}
		e := init.ProducerEpoch
		write("first", e, 0, nil, 0, "a", "b")
		write("second", e, 2, nil, 2, "c")
		write("first again", e, 0, nil, 0, "a", "b")
		write("second again", e, 2, nil, 2, "c")
		write("a gap", e, 4, kerr.OutOfOrderSequenceNumber, 0, "x")
		write("an overlap", e, 1, kerr.OutOfOrderSequenceNumber, 0, "x")
		for i := range int32(5) {
			write("more", e, 3+i, nil, int64(3+i), "d")
		}
		write("one of six batches ago", e, 2, kerr.OutOfOrderSequenceNumber, 0, "c")
		write("next epoch, not from the start", e+1, 8, kerr.OutOfOrderSequenceNumber, 0, "x")
		write("next epoch", e+1, 0, nil, 8, "e")
		write("old epoch", e, 8, kerr.InvalidProducerEpoch, 0, "x")
		if got, want := s.read(name, 0, 0), []string{"a", "b", "c", "d", "d", "d", "d", "d", "e"}; !slices.Equal(got, want) {
			s.Errorf("read %q, want %q", got, want)
		}
	})
}

func TestConformSequencesWrap(t *testing.T) {
	conform(t, func(s *suite) {
		name, id := s.topic(1)
		w := s.dial()
		init := s.initProducer(w, "", -1, -1, 0)
		const last = 1<<31 - 1
		got := s.produce(w, 9, "", name, id, 0, sent{pid: init.ProducerID, seq: last - 1, values: []string{"a", "b", "c"}})
		s.want("around the end", got.ErrorCode, nil)
		got = s.produce(w, 9, "", name, id, 0, sent{pid: init.ProducerID, seq: 1, values: []string{"d"}})
		s.want("after the end", got.ErrorCode, nil)
		got = s.produce(w, 9, "", name, id, 0, sent{pid: init.ProducerID, seq: last - 1, values: []string{"a", "b", "c"}})
		s.want("around the end again", got.ErrorCode, nil)
		if got.BaseOffset != 0 {
			s.Errorf("offset %d, want 0", got.BaseOffset)
		}
	})
}

func TestConformLogAppendTime(t *testing.T) {
	conform(t, func(s *suite) {
		name, id := s.topic(1, "message.timestamp.type", "LogAppendTime")
		w := s.dial()
		before := time.Now().UnixMilli()
		b := plain("a")
		b.firstTime = 1000
		got := s.produce(w, 9, "", name, id, 0, b)
		s.want("produce", got.ErrorCode, nil)
		if got.LogAppendTime < before {
			s.Errorf("append time %d, want at least %d", got.LogAppendTime, before)
		}
		if o := s.listOffset(w, name, 0, before, 7); o.Offset != 0 {
			s.Errorf("the first offset at or after %d is %d, want 0", before, o.Offset)
		}
		if got := s.read(name, 0, 0); !slices.Equal(got, []string{"a"}) {
			s.Errorf("read %q", got)
		}
	})
}

func TestConformListOffsets(t *testing.T) {
	conform(t, func(s *suite) {
		name, id := s.topic(1)
		w := s.dial()
		empty := s.listOffset(w, name, 0, -3, 7)
		s.want("max timestamp of an empty partition", empty.ErrorCode, nil)
		if empty.Offset != -1 {
			s.Errorf("max timestamp of an empty partition: offset %d, want -1", empty.Offset)
		}
		base := time.Now().UnixMilli() - 10_000
		for i, at := range []int64{100, 300, 300, 200, 400} {
			b := plain(fmt.Sprint(i), "x")
			b.firstTime, b.times = base+at, []int64{0, 10}
			s.want("produce", s.produce(w, 9, "", name, id, 0, b).ErrorCode, nil)
		}
		for _, tt := range []struct {
			at, want int64
		}{
			{base, 0}, {base + 100, 0}, {base + 101, 1}, {base + 111, 2}, {base + 300, 2}, {base + 305, 3}, {base + 311, 8}, {base + 410, 9}, {base + 411, -1},
			{-1, 10}, {-2, 0}, {-3, 9}, {-4, 0},
		} {
			version := int16(7)
			if tt.at == -4 {
				version = 8
			}
			got := s.listOffset(w, name, 0, tt.at, version)
			s.want(fmt.Sprint("offset at ", tt.at), got.ErrorCode, nil)
			if got.Offset != tt.want {
				s.Errorf("offset at base%+d: %d, want %d", tt.at-base, got.Offset, tt.want)
			}
		}
		s.want("no such partition", s.listOffset(w, name, 9, -1, 7).ErrorCode, kerr.UnknownTopicOrPartition)
		s.want("offset out of range", s.fetch(w, 12, name, id, 0, 11, 0).ErrorCode, kerr.OffsetOutOfRange)
		s.want("offset at the end", s.fetch(w, 12, name, id, 0, 10, 0).ErrorCode, nil)
	})
}

func TestConformDeleteRecords(t *testing.T) {
	conform(t, func(s *suite) {
		name, id := s.topic(1)
		w := s.dial()
		for i := range 5 {
			s.want("produce", s.produce(w, 9, "", name, id, 0, plain(fmt.Sprint(i), "x")).ErrorCode, nil)
		}
		ask := func(to int64) kmsg.DeleteRecordsResponseTopicPartition {
			req := kmsg.NewPtrDeleteRecordsRequest()
			req.Version, req.TimeoutMillis = 2, 10_000
			t := kmsg.NewDeleteRecordsRequestTopic()
			t.Topic = name
			p := kmsg.NewDeleteRecordsRequestTopicPartition()
			p.Partition, p.Offset = 0, to
			t.Partitions = append(t.Partitions, p)
			req.Topics = append(req.Topics, t)
			return query[*kmsg.DeleteRecordsResponse](w, req).Topics[0].Partitions[0]
		}
		s.want("beyond the end", ask(11).ErrorCode, kerr.OffsetOutOfRange)
		for _, tt := range []struct{ to, low int64 }{{3, 3}, {2, 3}, {-1, 10}} {
			got := ask(tt.to)
			s.want("delete", got.ErrorCode, nil)
			if got.LowWatermark != tt.low || s.listOffset(w, name, 0, -2, 7).Offset != tt.low {
				s.Errorf("delete up to %d: low watermark %d, want %d", tt.to, got.LowWatermark, tt.low)
			}
			s.want("fetch below", s.fetch(w, 12, name, id, 0, tt.low-1, 0).ErrorCode, kerr.OffsetOutOfRange)
			s.want("fetch", s.fetch(w, 12, name, id, 0, tt.low, 0).ErrorCode, nil)
		}
	})
}
