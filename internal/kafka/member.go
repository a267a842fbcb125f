package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pawlstream/pawl/topic"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
)

// MemberInfo is one member of the group as the leader sees it.
type MemberInfo struct {
	ID       string // the coordinator's name for it, another one after each restart
	Instance string // its own name for itself, which a restart keeps; may be empty
	Topics   []string
	Metadata []byte
}

// MemberConfig says which group to join, as whom, and how to assign. Zero
// fields mean the defaults named beside them.
type MemberConfig struct {
	Group    string
	Instance string // group instance ID; empty for a dynamic member
	Topics   []string

	SessionTimeout    time.Duration // 10 s
	HeartbeatInterval time.Duration // 300 ms
	RebalanceTimeout  time.Duration // 10 s: how long the group waits for a member to join
	TopicsInterval    time.Duration // 10 s: how often the leader looks for new partitions

	// Metadata is asked for what the leader is to know of this member, each
	// time it joins. It may be nil.
	Metadata func() []byte

	// Assign is called on the leader with all members, in order of their
	// instance and ID, and the partition count of every topic that exists. Its
	// answer names members by ID; one that it leaves out is assigned nothing.
	// Its error ends Run.
	Assign func(members []MemberInfo, partitions map[string]int32) (map[string][]topic.Partition, error)
}

func (c MemberConfig) withDefaults() MemberConfig {
	c.SessionTimeout = cmp.Or(c.SessionTimeout, 10*time.Second)
	c.HeartbeatInterval = cmp.Or(c.HeartbeatInterval, 300*time.Millisecond)
	c.RebalanceTimeout = cmp.Or(c.RebalanceTimeout, 10*time.Second)
	c.TopicsInterval = cmp.Or(c.TopicsInterval, 10*time.Second)
	return c
}

func (c MemberConfig) validate() error {
	var errs []error
	if c.Group == "" {
		errs = append(errs, errors.New("no group is named"))
	}
	if len(c.Topics) == 0 {
		errs = append(errs, errors.New("no topics are named"))
	}
	if c.Assign == nil {
		errs = append(errs, errors.New("no function assigns"))
	}
	if c.HeartbeatInterval*2 > c.SessionTimeout {
		errs = append(errs, fmt.Errorf("heartbeats every %v are too rare for a session of %v", c.HeartbeatInterval, c.SessionTimeout))
	}
	return errors.Join(errs...)
}

// Assignment is everything that the member is assigned in a generation.
type Assignment struct {
	Generation int32
	MemberID   string
	Leader     bool
	Partitions []topic.Partition // in order
}

// Member is one process in a consumer group, for membership and assignment
// alone: it fetches nothing.
//
//	Run:  join ── (leader: assign) ── sync ── heartbeats ──┐
//	        ▲          rebalance, lost, Rejoin             │
//	        └──────────────────────────────────────────────┘
//
// The protocol is Kafka's classic one, eager: nothing is given up before a
// rebalance, and who acts on the difference between two assignments makes sure
// of its own ground by fencing. Member speaks it itself, because the library's
// group consumer is bound to fetching and keeps its generation to itself.
//
// All methods are safe for concurrent use; Run is called once.
type Member struct {
	cfg    MemberConfig
	log    Config
	cl     *kgo.Client
	cancel context.CancelFunc

	rejoin chan struct{} // one wish to join again
	nudge  chan struct{} // one wish for a heartbeat now
	left   chan struct{} // closed by Leave and Close
	ran    chan struct{} // closed when Run has returned

	mu struct {
		sync.Mutex
		id         string // empty until the coordinator gives one
		generation int32  // -1 while not a member
		counts     map[string]int32
		leader     bool
		heartbeat  time.Time
		wish       bool // the next join is to cause a rebalance
		asked      bool // a join was sent, and the coordinator may know the instance
		running    bool
		left       bool
	}
}

// offsetCommitMax is the last version of OffsetCommit that names topics.
const offsetCommitMax = 9

// NewMember returns a member that has not joined. It connects to no broker.
func NewMember(cfg Config, mc MemberConfig) (*Member, error) {
	cfg, mc = cfg.withDefaults(), mc.withDefaults()
	if err := mc.validate(); err != nil {
		return nil, fmt.Errorf("member of group %s: %w", mc.Group, err)
	}
	versions := kversion.Stable()
	versions.SetMaxKeyVersion(int16(kmsg.OffsetCommit), offsetCommitMax)
	ctx, cancel := context.WithCancel(context.Background())
	cl, err := cfg.newClient(ctx, kgo.MaxVersions(versions), kgo.AlwaysRetryEOF())
	if err != nil {
		cancel()
		return nil, fmt.Errorf("member of group %s: %w", mc.Group, err)
	}
	m := &Member{
		cfg: mc, log: cfg, cl: cl, cancel: cancel,
		rejoin: make(chan struct{}, 1), nudge: make(chan struct{}, 1),
		left: make(chan struct{}), ran: make(chan struct{}),
	}
	m.mu.generation = -1
	return m, nil
}

// Run joins the group and stays in it, joining again after each rebalance and
// whenever membership is lost, until ctx ends or Leave is called, upon which
// it returns nil. onAssigned is called with the full assignment after each
// rebalance, on this goroutine: heartbeats wait for it, and it must not call
// Leave or Close.
//
// It returns an error that joining again would not mend: ErrInstanceFenced,
// ErrUnauthorized, one of Assign, a group of another protocol.
func (m *Member) Run(ctx context.Context, onAssigned func(Assignment)) error {
	m.mu.Lock()
	if m.mu.running || m.mu.left {
		m.mu.Unlock()
		return fmt.Errorf("run member of group %s: %w", m.cfg.Group, ErrClosed)
	}
	m.mu.running = true
	m.mu.Unlock()
	defer close(m.ran)
	ctx, cancel := context.WithCancel(ctx)
	var watch sync.WaitGroup
	defer watch.Wait()
	defer cancel()
	watch.Go(func() {
		select {
		case <-m.left:
			cancel()
		case <-ctx.Done():
		}
	})

	backoff := joinBackoffMin
	for ctx.Err() == nil {
		a, err := m.join(ctx)
		if err == nil {
			backoff = joinBackoffMin
			onAssigned(a)
			err = m.stay(ctx)
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil, errors.Is(err, ErrRebalancing):
			continue
		case errors.Is(err, ErrNotMember):
			m.log.Logger.Warn("lost membership of the group; joining again", "group", m.cfg.Group, "err", err)
			continue
		case m.fatal(err):
			return fmt.Errorf("member of group %s: %w", m.cfg.Group, err)
		}
		m.log.Logger.Debug("join the group", "group", m.cfg.Group, "err", err, "again in", backoff)
		select {
		case <-ctx.Done():
		case <-time.After(backoff):
		}
		backoff = min(2*backoff, joinBackoffMax)
	}
	return nil
}

const (
	joinBackoffMin = 100 * time.Millisecond
	joinBackoffMax = 2 * time.Second
)

// assignError marks an error that came from Assign.
type assignError struct{ error }

func (e assignError) Unwrap() error { return e.error }

func (m *Member) fatal(err error) bool {
	if ae := (assignError{}); errors.As(err, &ae) {
		return true
	}
	for _, e := range []error{ErrInstanceFenced, ErrUnauthorized, ErrClosed, kerr.InconsistentGroupProtocol, kerr.InvalidSessionTimeout, kerr.InvalidGroupID, kerr.GroupMaxSizeReached, kerr.UnsupportedVersion} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// groupError gives an error of the coordinator its class.
func (m *Member) groupError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, kerr.RebalanceInProgress):
		return fmt.Errorf("%w: %w", ErrRebalancing, err)
	case errors.Is(err, kerr.InvalidSessionTimeout):
		return fmt.Errorf("the brokers take no session timeout of %v (--session-timeout): they say from when to when by group.min.session.timeout.ms, which is 6 s unless set, and group.max.session.timeout.ms: %w", m.cfg.SessionTimeout, err)
	case errors.Is(err, kerr.FencedInstanceID):
		m.mu.Lock()
		m.mu.asked = false // the instance is another process's now
		m.mu.Unlock()
		return fmt.Errorf("%w: %s: %w", ErrInstanceFenced, m.cfg.Instance, err)
	case errors.Is(err, kerr.UnknownMemberID):
		return fmt.Errorf("%w: %w", ErrNotMember, err)
	case errors.Is(err, kerr.IllegalGeneration):
		return fmt.Errorf("%w: %w", ErrNotMember, err)
	}
	return classed(err)
}

// forgetLocked takes note of what an error says of the membership.
func (m *Member) forgetLocked(err error) {
	if errors.Is(err, kerr.UnknownMemberID) {
		m.mu.id, m.mu.generation = "", -1
	}
	if errors.Is(err, kerr.IllegalGeneration) {
		m.mu.generation = -1
	}
}

// joinError is the error of a step of join, which is also the only one to
// change the membership while it runs.
func (m *Member) joinError(step string, err error) error {
	m.mu.Lock()
	m.forgetLocked(err)
	m.mu.Unlock()
	return fmt.Errorf("%s: %w", step, m.groupError(err))
}

// instance is the group instance ID as requests want it.
func (m *Member) instance() *string {
	if m.cfg.Instance == "" {
		return nil
	}
	return &m.cfg.Instance
}

// join goes through one rebalance.
//
// A coordinator may take a join of this very member for that of another process as
// the same instance: one that was sent again because no answer came, and that it
// read after the one that it has answered, as a broker does that was frozen for a
// while. Then the member is fenced right after it has joined. It joins once more
// before it takes that for true: of two processes that are there for good one is
// fenced again, and ends.
func (m *Member) join(ctx context.Context) (Assignment, error) {
	a, err := m.joinOnce(ctx)
	var fenced *fencedAtSync
	if !errors.As(err, &fenced) {
		return a, err
	}
	m.log.Logger.Warn("fenced right after joining; joining once more", "group", m.cfg.Group, "instance", m.cfg.Instance, "err", err)
	m.mu.Lock()
	m.mu.id, m.mu.generation = "", -1
	m.mu.Unlock()
	return m.joinOnce(ctx)
}

// fencedAtSync is the error of a sync that followed on a join, and says that the
// instance is another's.
type fencedAtSync struct{ error }

func (e *fencedAtSync) Unwrap() error { return e.error }

func (m *Member) joinOnce(ctx context.Context) (Assignment, error) {
	m.mu.Lock()
	id, wish := m.mu.id, int32(-1)
	if m.mu.wish {
		wish = m.mu.generation
		m.mu.wish = false
	}
	m.mu.Unlock()

	m.mu.Lock()
	m.mu.asked = true
	m.mu.Unlock()
	req := kmsg.NewPtrJoinGroupRequest()
	req.Group = m.cfg.Group
	req.MemberID = id
	req.InstanceID = m.instance()
	req.SessionTimeoutMillis = int32(m.cfg.SessionTimeout.Milliseconds())
	req.RebalanceTimeoutMillis = int32(m.cfg.RebalanceTimeout.Milliseconds())
	req.ProtocolType = protocolType
	req.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: protocolName, Metadata: m.subscription(wish)}}
	resp, err := req.RequestWith(ctx, m.cl)
	if err != nil {
		return Assignment{}, m.joinError("join", err)
	}
	if resp.MemberID != "" {
		m.mu.Lock()
		m.mu.id = resp.MemberID
		m.mu.Unlock()
	}
	err = kerr.ErrorForCode(resp.ErrorCode)
	if errors.Is(err, kerr.MemberIDRequired) {
		return m.joinOnce(ctx) // with the ID that came with it
	}
	if err != nil {
		return Assignment{}, m.joinError("join", err)
	}

	a := Assignment{Generation: resp.Generation, MemberID: resp.MemberID, Leader: resp.LeaderID == resp.MemberID}
	sync := kmsg.NewPtrSyncGroupRequest()
	sync.Group = m.cfg.Group
	sync.Generation = resp.Generation
	sync.MemberID = resp.MemberID
	sync.InstanceID = m.instance()
	sync.ProtocolType = kmsg.StringPtr(protocolType)
	sync.Protocol = kmsg.StringPtr(protocolName)
	if a.Leader && !resp.SkipAssignment {
		sync.GroupAssignment, err = m.assign(ctx, resp.Members)
		if err != nil {
			return Assignment{}, err
		}
	}
	sent := time.Now()
	sresp, err := sync.RequestWith(ctx, m.cl)
	if err == nil {
		err = kerr.ErrorForCode(sresp.ErrorCode)
	}
	if errors.Is(err, kerr.FencedInstanceID) {
		return Assignment{}, &fencedAtSync{m.joinError("sync", err)}
	}
	if err != nil {
		return Assignment{}, m.joinError("sync", err)
	}
	var counts map[string]int32
	a.Partitions, counts, err = decodeAssignment(sresp.MemberAssignment)
	if err != nil {
		return Assignment{}, fmt.Errorf("sync: %w", err)
	}
	m.mu.Lock()
	m.mu.generation = a.Generation
	m.mu.leader = a.Leader
	m.mu.counts = counts
	m.mu.heartbeat = sent
	m.mu.Unlock()
	return a, nil
}

func (m *Member) subscription(wish int32) []byte {
	var user []byte
	if m.cfg.Metadata != nil {
		user = m.cfg.Metadata()
	}
	return encodeSubscription(m.cfg.Topics, user, wish)
}

// assign asks Assign, as the group's leader.
func (m *Member) assign(ctx context.Context, joined []kmsg.JoinGroupResponseMember) ([]kmsg.SyncGroupRequestGroupAssignment, error) {
	members := make([]MemberInfo, 0, len(joined))
	topics := make(map[string]bool)
	for _, j := range joined {
		info := MemberInfo{ID: j.MemberID}
		if j.InstanceID != nil {
			info.Instance = *j.InstanceID
		}
		var err error
		if info.Topics, info.Metadata, err = decodeSubscription(j.ProtocolMetadata); err != nil {
			m.log.Logger.Warn("a member's metadata can't be read; it is assigned nothing of its own wish", "group", m.cfg.Group, "member", j.MemberID, "err", err)
		}
		for _, t := range info.Topics {
			topics[t] = true
		}
		members = append(members, info)
	}
	slices.SortFunc(members, func(x, y MemberInfo) int {
		return cmp.Or(strings.Compare(x.Instance, y.Instance), strings.Compare(x.ID, y.ID))
	})
	counts, err := m.count(ctx, slices.Sorted(maps.Keys(topics)))
	if err != nil {
		return nil, fmt.Errorf("count partitions to assign: %w", err)
	}
	assigned, err := m.cfg.Assign(members, maps.Clone(counts))
	if err != nil {
		return nil, fmt.Errorf("assign: %w", assignError{err})
	}
	out := make([]kmsg.SyncGroupRequestGroupAssignment, 0, len(members))
	for _, info := range members {
		out = append(out, kmsg.SyncGroupRequestGroupAssignment{MemberID: info.ID, MemberAssignment: encodeAssignment(assigned[info.ID], counts)})
	}
	return out, nil
}

// count returns the partition count of each of the topics that exists.
func (m *Member) count(ctx context.Context, names []string) (map[string]int32, error) {
	counts := make(map[string]int32, len(names))
	if len(names) == 0 {
		return counts, nil
	}
	topics, err := metadata(ctx, m.cl, names...)
	if err != nil {
		return nil, err
	}
	for _, t := range topics {
		if t.Topic == nil {
			continue
		}
		switch err := kerr.ErrorForCode(t.ErrorCode); {
		case err == nil:
			counts[*t.Topic] = int32(len(t.Partitions))
		case isUnknownTopic(err):
		default:
			return nil, fmt.Errorf("topic %s: %w", *t.Topic, classed(err))
		}
	}
	return counts, nil
}

// stay sends heartbeats until the member must, or is to, join again.
func (m *Member) stay(ctx context.Context) error {
	beat := time.NewTicker(m.cfg.HeartbeatInterval)
	defer beat.Stop()
	look := time.NewTicker(m.cfg.TopicsInterval)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-m.rejoin:
			m.mu.Lock()
			m.mu.wish = true
			m.mu.Unlock()
			return nil
		case <-look.C:
			if m.topicsChanged(ctx) {
				return nil // a leader that joins again causes a rebalance
			}
			continue
		case <-beat.C:
		case <-m.nudge:
		}
		switch err := m.beat(ctx); {
		case err == nil:
		case errors.Is(err, ErrRebalancing), errors.Is(err, ErrNotMember), m.fatal(err):
			return err
		default:
			// The coordinator can't be asked just now. Whether the member is
			// still one is for the coordinator to say.
			m.log.Logger.Debug("heartbeat", "group", m.cfg.Group, "err", err)
		}
	}
}

// topicsChanged says whether the member leads the group and the topics no
// longer have the partitions that were assigned.
func (m *Member) topicsChanged(ctx context.Context) bool {
	m.mu.Lock()
	leader, assigned := m.mu.leader, m.mu.counts
	m.mu.Unlock()
	if !leader {
		return false
	}
	names := slices.Collect(maps.Keys(assigned))
	names = append(names, m.cfg.Topics...)
	slices.Sort(names)
	ctx, cancel := context.WithTimeout(ctx, m.cfg.SessionTimeout/3)
	defer cancel()
	now, err := m.count(ctx, slices.Compact(names))
	if err != nil {
		m.log.Logger.Debug("look for new partitions", "group", m.cfg.Group, "err", err)
		return false
	}
	return !maps.Equal(now, assigned)
}

// Heartbeat asks the coordinator, once and now, whether this process is a
// member of the group's current generation. Only nil means yes. ErrRebalancing
// means that it is a member and the generation is ending; ErrNotMember and
// ErrInstanceFenced that it is none.
func (m *Member) Heartbeat(ctx context.Context) error {
	err := m.beat(ctx)
	if err != nil {
		select { // Run finds out at once, and acts on it
		case m.nudge <- struct{}{}:
		default:
		}
	}
	return err
}

func (m *Member) beat(ctx context.Context) error {
	m.mu.Lock()
	id, generation := m.mu.id, m.mu.generation
	m.mu.Unlock()
	if generation < 0 {
		return fmt.Errorf("heartbeat: %w: it has not joined", ErrNotMember)
	}
	req := kmsg.NewPtrHeartbeatRequest()
	req.Group = m.cfg.Group
	req.Generation = generation
	req.MemberID = id
	req.InstanceID = m.instance()
	// One that is lost on the way must leave time for others.
	ctx, cancel := context.WithTimeout(ctx, m.cfg.SessionTimeout/3)
	defer cancel()
	sent := time.Now()
	resp, err := req.RequestWith(ctx, m.cl)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	m.mu.Lock()
	same := m.mu.generation == generation && m.mu.id == id
	if err == nil && same {
		m.mu.heartbeat = sent
	}
	if same { // not while Run has gone on to another generation
		m.forgetLocked(err)
	}
	m.mu.Unlock()
	switch {
	case err == nil && same:
		return nil
	case !same: // an answer about a generation that is over says nothing of this one
		return fmt.Errorf("heartbeat: %w: its generation ended meanwhile", ErrRebalancing)
	}
	return fmt.Errorf("heartbeat: %w", m.groupError(err))
}

// LastHeartbeat is when the last request was sent that the coordinator
// answered by taking this process for a member. It is zero before the first.
func (m *Member) LastHeartbeat() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.heartbeat
}

// CommitOffsets commits offsets for the group, as this member of the current
// generation.
func (m *Member) CommitOffsets(ctx context.Context, offsets map[topic.Partition]Committed) error {
	return m.commitOffsets(ctx, "", offsets)
}

// CommitOffsetsAs is CommitOffsets as long as the coordinator knows this
// process by the ID that an assignment named. Once it was taken for gone and
// has joined anew, what it was assigned before is no longer its to commit: the
// answer is then ErrNotMember.
func (m *Member) CommitOffsetsAs(ctx context.Context, memberID string, offsets map[topic.Partition]Committed) error {
	return m.commitOffsets(ctx, memberID, offsets)
}

func (m *Member) commitOffsets(ctx context.Context, as string, offsets map[topic.Partition]Committed) error {
	if len(offsets) == 0 {
		return nil
	}
	m.mu.Lock()
	id, generation := m.mu.id, m.mu.generation
	m.mu.Unlock()
	if as != "" && as != id {
		return fmt.Errorf("commit offsets of group %s as member %s: %w", m.cfg.Group, as, ErrNotMember)
	}
	if generation < 0 {
		return fmt.Errorf("commit offsets of group %s: %w", m.cfg.Group, ErrNotMember)
	}
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group = m.cfg.Group
	req.Generation = generation
	req.MemberID = id
	req.InstanceID = m.instance()
	byTopic := make(map[string]*kmsg.OffsetCommitRequestTopic)
	for p, c := range offsets {
		t := byTopic[p.Topic]
		if t == nil {
			nt := kmsg.NewOffsetCommitRequestTopic()
			t = &nt
			t.Topic = p.Topic
			byTopic[p.Topic] = t
		}
		rp := kmsg.NewOffsetCommitRequestTopicPartition()
		rp.Partition, rp.Offset, rp.LeaderEpoch = p.Number, c.Offset, -1
		rp.Metadata = kmsg.StringPtr(c.Metadata)
		t.Partitions = append(t.Partitions, rp)
	}
	for _, t := range byTopic {
		req.Topics = append(req.Topics, *t)
	}
	resp, err := req.RequestWith(ctx, m.cl)
	if err != nil {
		return fmt.Errorf("commit offsets of group %s: %w", m.cfg.Group, m.groupError(err))
	}
	var errs []error
	for _, t := range resp.Topics {
		for _, rp := range t.Partitions {
			if err := kerr.ErrorForCode(rp.ErrorCode); err != nil {
				errs = append(errs, fmt.Errorf("commit offset of %s-%d for group %s: %w", t.Topic, rp.Partition, m.cfg.Group, m.groupError(err)))
			}
		}
	}
	return errors.Join(errs...)
}

// Rejoin asks for a rebalance: the member joins again, and with it all others.
func (m *Member) Rejoin() {
	select {
	case m.rejoin <- struct{}{}:
	default: // it is asked for already
	}
}

// Leave ends Run, waits for it to return, and leaves the group, naming both
// member and instance: a static member is gone at once, too, and not only when
// its session ends.
func (m *Member) Leave(ctx context.Context) error {
	if err := m.halt(ctx); err != nil {
		return fmt.Errorf("leave group %s: %w", m.cfg.Group, err)
	}
	m.mu.Lock()
	id, asked := m.mu.id, m.mu.asked
	m.mu.id, m.mu.generation, m.mu.asked = "", -1, false
	m.mu.Unlock()
	if id == "" && (!asked || m.cfg.Instance == "") {
		return nil // never joined
	}
	// Where the answer to the join was lost, the instance alone names the
	// member: otherwise it would hold its partitions until its session ends.
	req := kmsg.NewPtrLeaveGroupRequest()
	req.Group = m.cfg.Group
	req.MemberID = id // for brokers of one member a request
	leaving := kmsg.NewLeaveGroupRequestMember()
	leaving.MemberID, leaving.InstanceID = id, m.instance()
	leaving.Reason = kmsg.StringPtr("drained")
	req.Members = append(req.Members, leaving)
	resp, err := req.RequestWith(ctx, m.cl)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err == nil {
		for _, r := range resp.Members {
			err = errors.Join(err, kerr.ErrorForCode(r.ErrorCode))
		}
	}
	switch {
	case err == nil, errors.Is(err, kerr.UnknownMemberID): // gone already
		return nil
	}
	return fmt.Errorf("leave group %s: %w", m.cfg.Group, m.groupError(err))
}

// halt ends Run and waits for it.
func (m *Member) halt(ctx context.Context) error {
	m.mu.Lock()
	running := m.mu.running
	if !m.mu.left {
		m.mu.left = true
		close(m.left)
	}
	m.mu.Unlock()
	if !running {
		return nil
	}
	select {
	case <-m.ran:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close ends the member without leaving the group: a static member that comes
// back within its session finds its assignment as it was. It waits for Run.
func (m *Member) Close() {
	m.mu.Lock()
	running := m.mu.running
	if !m.mu.left {
		m.mu.left = true
		close(m.left)
	}
	m.mu.Unlock()
	m.cancel()
	if running {
		<-m.ran
	}
	m.cl.Close()
}
