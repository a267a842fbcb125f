package kafka

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"github.com/twmb/franz-go/pkg/kerr"
)

// isFence says whether a broker refused a producer for its epoch: another
// incarnation has a newer one, or the coordinator has ended the transaction by
// itself and raised it. Which code says so depends on the request and on who
// was faster.
func isFence(err error) bool {
	for _, e := range []error{kerr.InvalidProducerEpoch, kerr.ProducerFenced, kerr.InvalidTxnState, kerr.InvalidProducerIDMapping, kerr.TransactionalIDNotFound} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// isRefusal says whether a broker, or the client's own check, has refused a
// record for what it is or where it goes, so that sending it again as it is
// will not help.
func isRefusal(err error) bool {
	if isUnknownTopic(err) || isUnauthorized(err) || isTooLarge(err) || errors.Is(err, errNoSuchPartition) {
		return true
	}
	for _, e := range []error{kerr.InvalidRecord, kerr.InvalidTimestamp, kerr.InvalidTopicException, kerr.PolicyViolation, kerr.UnsupportedForMessageFormat, kerr.UnsupportedCompressionType} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func isTooLarge(err error) bool {
	return errors.Is(err, kerr.MessageTooLarge) || errors.Is(err, kerr.RecordListTooLarge)
}

func isUnknownTopic(err error) bool {
	return errors.Is(err, kerr.UnknownTopicOrPartition) || errors.Is(err, kerr.UnknownTopicID) || errors.Is(err, kerr.InconsistentTopicID)
}

func isUnauthorized(err error) bool {
	for _, e := range []error{kerr.TopicAuthorizationFailed, kerr.GroupAuthorizationFailed, kerr.ClusterAuthorizationFailed, kerr.TransactionalIDAuthorizationFailed, kerr.SaslAuthenticationFailed} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func isConnectionLoss(err error) bool {
	for _, e := range []error{io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, syscall.ECONNRESET, syscall.ECONNREFUSED, syscall.EPIPE} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// classed gives a broker's error the class that callers test for, and keeps
// the error.
func classed(err error) error {
	var class error
	switch {
	case err == nil:
		return nil
	case isUnknownTopic(err):
		class = ErrUnknownTopic
	case isUnauthorized(err):
		class = ErrUnauthorized
	case isTooLarge(err):
		class = ErrTooLarge
	case isFence(err):
		class = ErrFenced
	default:
		return err
	}
	return fmt.Errorf("%w: %w", class, err)
}
