package kafka

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/pawlstream/pawl/cluster"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// The parts of a check of a cluster, one by one, for who wants to know all of
// them.

// Probe connects to a broker, and returns where the brokers say that they are.
// Its error is a *ConnectError.
func Probe(ctx context.Context, c cluster.Cluster, broker string) (advertised []string, err error) {
	return probe(ctx, c, broker)
}

// CheckVersion says whether the cluster is new enough. Its error matches
// ErrOldBroker if it is not.
func (a *Admin) CheckVersion(ctx context.Context) error { return a.checkVersion(ctx) }

// Operation is what a user may be allowed to do with a topic, a group or the
// cluster, by Kafka's name for it.
type Operation string

// The operations that matter to Pawl.
const (
	OpRead            Operation = "READ"
	OpWrite           Operation = "WRITE"
	OpCreate          Operation = "CREATE"
	OpDescribe        Operation = "DESCRIBE"
	OpDescribeConfigs Operation = "DESCRIBE_CONFIGS"
)

// Operations are what is allowed; nil where the broker doesn't say.
type Operations []Operation

// Missing returns what of what is wanted is not allowed.
func (o Operations) Missing(wanted ...Operation) []string {
	var missing []string
	for _, w := range wanted {
		if !slices.Contains(o, w) {
			missing = append(missing, string(w))
		}
	}
	return missing
}

func operationsOf(ops []kadm.ACLOperation) Operations {
	var all Operations
	for _, op := range ops {
		all = append(all, Operation(strings.ToUpper(op.String())))
	}
	return all
}

// TopicOperations returns what this user may do with topics that exist. A topic
// that the user may not describe looks like one that doesn't exist, and has no
// entry.
func (a *Admin) TopicOperations(ctx context.Context, topics ...string) (map[string]Operations, error) {
	all := make(map[string]Operations)
	if len(topics) == 0 {
		return all, nil
	}
	req := kmsg.NewPtrMetadataRequest()
	req.IncludeTopicAuthorizedOperations = true
	for _, name := range topics {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = &name
		req.Topics = append(req.Topics, t)
	}
	resp, err := req.RequestWith(ctx, a.cl)
	if err != nil {
		return nil, fmt.Errorf("ask what is allowed with topics: %w", classed(err))
	}
	for _, t := range resp.Topics {
		if t.Topic != nil && kerr.ErrorForCode(t.ErrorCode) == nil {
			all[*t.Topic] = operationsOf(kadm.DecodeACLOperations(t.AuthorizedOperations))
		}
	}
	return all, nil
}

// GroupOperations returns what this user may do with a group, which need not
// exist.
func (a *Admin) GroupOperations(ctx context.Context, group string) (Operations, error) {
	req := kmsg.NewPtrDescribeGroupsRequest()
	req.Groups = []string{group}
	req.IncludeAuthorizedOperations = true
	resp, err := req.RequestWith(ctx, a.cl)
	if err != nil {
		return nil, fmt.Errorf("ask what is allowed with group %s: %w", group, classed(err))
	}
	for _, g := range resp.Groups {
		err := kerr.ErrorForCode(g.ErrorCode)
		if err != nil && err != kerr.GroupIDNotFound {
			return nil, fmt.Errorf("ask what is allowed with group %s: %w", group, classed(err))
		}
		if ops := operationsOf(kadm.DecodeACLOperations(g.AuthorizedOperations)); len(ops) > 0 {
			return ops, nil
		}
	}
	return nil, nil
}

// ClusterOperations returns what this user may do with the cluster.
func (a *Admin) ClusterOperations(ctx context.Context) (Operations, error) {
	req := kmsg.NewPtrDescribeClusterRequest()
	req.IncludeClusterAuthorizedOperations = true
	resp, err := req.RequestWith(ctx, a.cl)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		return nil, fmt.Errorf("ask what is allowed with the cluster: %w", classed(err))
	}
	return operationsOf(kadm.DecodeACLOperations(resp.ClusterAuthorizedOperations)), nil
}

// CheckTransactionalID says whether this user may describe a transactional ID,
// which who may use it may. It need not exist. (Whether it may be used can't be
// asked without using it, which would fence its owner.)
func (a *Admin) CheckTransactionalID(ctx context.Context, id string) error {
	req := kmsg.NewPtrDescribeTransactionsRequest()
	req.TransactionalIDs = []string{id}
	resp, err := req.RequestWith(ctx, a.cl)
	if err != nil {
		return fmt.Errorf("describe transactional ID %s: %w", id, classed(err))
	}
	for _, s := range resp.TransactionStates {
		if err := kerr.ErrorForCode(s.ErrorCode); err != nil && err != kerr.TransactionalIDNotFound {
			return fmt.Errorf("describe transactional ID %s: %w", id, classed(err))
		}
	}
	return nil
}
