package kafka

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/pawlstream/pawl/cluster"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Check says whether the cluster can be reached and is new enough. Its error
// is a *ConnectError for each broker that was tried in vain, or ErrOldBroker
// unless allowOld. It asks by hand, step by step, and so knows at which step
// of a connection what went wrong.
func (a *Admin) Check(ctx context.Context, allowOld bool) error {
	if err := a.cfg.Cluster.Validate(); err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	var errs []error
	var advertised []string
	var through string
	for _, broker := range a.cfg.Cluster.Brokers {
		brokers, err := probe(ctx, a.cfg.Cluster, broker)
		if errors.Is(ctx.Err(), context.Canceled) {
			return fmt.Errorf("check the cluster: %w", context.Cause(ctx)) // nothing is wrong with the broker
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		through, advertised = broker, brokers
		break
	}
	if through == "" {
		return errors.Join(errs...)
	}
	if err := a.checkAdvertised(ctx, through, advertised); err != nil {
		return err
	}
	if err := a.checkVersion(ctx); err != nil && !allowOld {
		return err
	}
	return nil
}

// checkAdvertised makes sure that a broker can be reached where the brokers
// say that they are, which is where clients go.
func (a *Admin) checkAdvertised(ctx context.Context, through string, advertised []string) error {
	var errs []error
	for _, broker := range advertised {
		if broker == through {
			return nil
		}
		_, err := probe(ctx, a.cfg.Cluster, broker)
		if err == nil {
			return nil
		}
		if ce := (*ConnectError)(nil); errors.As(err, &ce) {
			ce.Likely = fmt.Sprintf("broker %s was reached, and says that clients find one at %s (its advertised.listeners): %s", through, broker, ce.Likely)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// checkVersion looks for what came with Apache Kafka 4.0, and whether it is in
// use: a broker's version is not the cluster's.
func (a *Admin) checkVersion(ctx context.Context) error {
	req := kmsg.NewPtrApiVersionsRequest()
	req.ClientSoftwareName, req.ClientSoftwareVersion = "pawl", "1"
	resp, err := req.RequestWith(ctx, a.cl)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		return fmt.Errorf("ask the cluster for its version: %w", err)
	}
	var endTxn int16
	for _, k := range resp.ApiKeys {
		if kmsg.Key(k.ApiKey) == kmsg.EndTxn {
			endTxn = k.MaxVersion
		}
	}
	var level int16
	for _, f := range resp.FinalizedFeatures {
		if f.Name == "transaction.version" {
			level = f.MaxVersionLevel
		}
	}
	switch {
	case endTxn < endTxnVersion:
		return fmt.Errorf("%w; it knows EndTxn up to version %d", ErrOldBroker, endTxn)
	case level < 2:
		return fmt.Errorf("%w; it has finalized transaction.version %d (kafka-features.sh upgrade --feature transaction.version=2)", ErrOldBroker, level)
	}
	return nil
}

// step is a step of a connection.
type step int

const (
	stepDial step = iota
	stepTLS
	stepHello // the first request, which every broker answers
	stepSASLHandshake
	stepSASL
	stepMetadata // the first request that wants a user
)

// probe connects to a broker and asks it where the brokers are.
func probe(ctx context.Context, c cluster.Cluster, broker string) (advertised []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	p := &prober{ctx: ctx, cluster: c, broker: broker}
	defer func() {
		if p.conn != nil {
			// It was only asked; there is nothing to lose in it.
			_ = p.conn.Close()
		}
	}()
	if advertised, err = p.run(); err != nil {
		likely := p.likely(err)
		return nil, &ConnectError{Broker: broker, Tried: tried(c), Likely: likely, Err: err, kind: p.kind}
	}
	return advertised, nil
}

func tried(c cluster.Cluster) string {
	s := "without TLS"
	if c.TLS != nil {
		s = "with TLS"
	}
	if c.SASL.Mechanism == "" {
		return s + ", without SASL"
	}
	if c.SASL.Username == "" {
		return fmt.Sprintf("%s, SASL %s", s, c.SASL.Mechanism)
	}
	return fmt.Sprintf("%s, SASL %s as %q", s, c.SASL.Mechanism, c.SASL.Username)
}

type prober struct {
	ctx     context.Context
	cluster cluster.Cluster
	broker  string
	conn    net.Conn
	at      step
	offers  []string // the SASL mechanisms that the broker offers
	alert   bool     // the broker answered a plain request in TLS
	kind    ConnectKind
}

func (p *prober) run() (advertised []string, err error) {
	p.at = stepDial
	conn, err := dial(p.ctx, p.cluster, p.broker)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(p.ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	p.conn = conn
	if p.cluster.TLS != nil {
		p.at = stepTLS
		p.conn = nil // the handshake closes what it was given if it fails
		if p.conn, err = handshake(p.ctx, p.cluster, p.broker, conn); err != nil {
			p.conn = nil
			return nil, err
		}
	}

	p.at = stepHello
	hello := kmsg.NewPtrApiVersionsRequest()
	hello.SetVersion(0)
	if _, err := p.ask(hello); err != nil {
		return nil, err
	}
	if m := mechanism(p.cluster.SASL); m != nil {
		p.at = stepSASLHandshake
		req := kmsg.NewPtrSASLHandshakeRequest()
		req.SetVersion(1)
		req.Mechanism = m.Name()
		resp, err := p.ask(req)
		if err != nil {
			return nil, err
		}
		hs := resp.(*kmsg.SASLHandshakeResponse)
		p.offers = hs.SupportedMechanisms
		if err := kerr.ErrorForCode(hs.ErrorCode); err != nil {
			return nil, err
		}
		p.at = stepSASL
		session, write, err := m.Authenticate(p.ctx, p.broker)
		if err != nil {
			return nil, err
		}
		for done := false; !done; {
			req := kmsg.NewPtrSASLAuthenticateRequest()
			req.SetVersion(1)
			req.SASLAuthBytes = write
			resp, err := p.ask(req)
			if err != nil {
				return nil, err
			}
			auth := resp.(*kmsg.SASLAuthenticateResponse)
			if err := kerr.ErrorForCode(auth.ErrorCode); err != nil {
				return nil, err
			}
			if done, write, err = session.Challenge(auth.SASLAuthBytes); err != nil {
				return nil, err
			}
		}
	}

	p.at = stepMetadata
	req := kmsg.NewPtrMetadataRequest()
	req.SetVersion(4)
	req.Topics = []kmsg.MetadataRequestTopic{} // none
	req.AllowAutoTopicCreation = false
	resp, err := p.ask(req)
	if err != nil {
		return nil, err
	}
	for _, b := range resp.(*kmsg.MetadataResponse).Brokers {
		advertised = append(advertised, net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port))))
	}
	return advertised, nil
}

// answerMax bounds what is read as an answer: those asked for here are small.
const answerMax = 1 << 20

// ask sends a request of a version from before tagged fields, and reads the
// answer.
func (p *prober) ask(req kmsg.Request) (kmsg.Response, error) {
	const correlation = 1
	b := kmsg.NewRequestFormatter(kmsg.FormatterClientID("pawl")).AppendRequest(nil, req, correlation)
	if _, err := p.conn.Write(b); err != nil {
		return nil, err
	}
	var head [8]byte
	if n, err := io.ReadFull(p.conn, head[:]); err != nil {
		p.alert = isAlert(head[:n])
		return nil, err
	}
	size := int64(binary.BigEndian.Uint32(head[:]))
	switch {
	case isAlert(head[:]):
		p.alert = true
		return nil, errors.New("the answer is a TLS alert")
	case size < 4 || size > answerMax:
		return nil, fmt.Errorf("the answer is not one of Kafka's: it begins with % x", head)
	case binary.BigEndian.Uint32(head[4:]) != correlation:
		return nil, errors.New("the answer is to another request")
	}
	body := make([]byte, size-4)
	if _, err := io.ReadFull(p.conn, body); err != nil {
		return nil, err
	}
	resp := req.ResponseKind()
	if err := resp.ReadFrom(body); err != nil {
		return nil, fmt.Errorf("answer to %s: %w", kmsg.NameForKey(req.Key()), err)
	}
	return resp, nil
}

// isAlert says whether bytes begin a TLS alert.
func isAlert(b []byte) bool { return len(b) >= 2 && b[0] == 21 && b[1] == 3 }

// likely says in words what is probably wrong, and notes its kind.
func (p *prober) likely(err error) string {
	timeout := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded)
	closed := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, net.ErrClosed)
	if errors.Is(p.ctx.Err(), context.Canceled) {
		return "the attempt was given up"
	}
	switch p.at {
	case stepDial:
		var dns *net.DNSError
		switch {
		case errors.As(err, &dns):
			return fmt.Sprintf("the host name %q can't be resolved; is it spelled right, and known on this machine?", dns.Name)
		case errors.Is(err, syscall.ECONNREFUSED):
			return "nothing listens there; is the broker running, and is the port right?"
		case timeout:
			return "no answer; is the address right, and does a firewall let it through?"
		case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
			return "there is no way to that host from here"
		}
		return "no connection"
	case stepTLS:
		var header tls.RecordHeaderError
		var authority x509.UnknownAuthorityError
		var name x509.HostnameError
		var invalid x509.CertificateInvalidError
		var remote tls.AlertError
		switch {
		case errors.As(err, &header):
			p.kind = PlainPort
			return "the port does not speak TLS, and this side is set to"
		case errors.As(err, &authority):
			p.kind = BadCertificate
			return "the broker's certificate is signed by nobody who is trusted here; the authority's certificate must be given"
		case errors.As(err, &name):
			p.kind = BadCertificate
			return "the broker's certificate is for another host name"
		case errors.As(err, &invalid):
			p.kind = BadCertificate
			return "the broker's certificate is not valid"
		case errors.As(err, &remote), strings.Contains(err.Error(), "remote error: tls"):
			p.kind = BadCertificate
			return "the broker refused the TLS handshake; it may want a client certificate"
		case closed, timeout:
			p.kind = PlainPort
			return "the port does not seem to speak TLS, and this side is set to"
		}
		return "the TLS handshake went wrong"
	case stepHello:
		switch {
		case strings.Contains(err.Error(), "remote error: tls"): // in TLS 1.3 it comes after the handshake
			p.kind = BadCertificate
			return "the broker wants a client certificate, or did not accept this one"
		case p.alert, closed && p.cluster.TLS == nil:
			p.kind = TLSPort
			return "the port seems to speak TLS, and this side is not set to"
		case closed:
			return "the broker closed the connection; it may want a client certificate, or is no Kafka broker"
		case timeout:
			return "connected, and no answer; is that a Kafka broker, and is it overloaded?"
		}
		return "that does not seem to be a Kafka broker"
	case stepSASLHandshake:
		switch {
		case errors.Is(err, kerr.UnsupportedSaslMechanism):
			p.kind = BadMechanism
			if len(p.offers) == 0 {
				return fmt.Sprintf("the broker does not offer SASL %s", p.cluster.SASL.Mechanism)
			}
			return fmt.Sprintf("the broker offers SASL %s, and not %s", strings.Join(slices.Sorted(slices.Values(p.offers)), ", "), p.cluster.SASL.Mechanism)
		case errors.Is(err, kerr.IllegalSaslState), closed:
			p.kind = NoSASL
			return "the port takes no SASL, and this side is set to use it"
		}
		return "the broker did not begin SASL"
	case stepSASL:
		var token *tokenError
		switch {
		case errors.As(err, &token):
			p.kind = BadLogin
			return "there is no token to log in with"
		case timeout:
			return "the broker did not finish SASL in time"
		case p.cluster.SASL.Mechanism == cluster.OAuthBearer:
			p.kind = BadLogin
			return "the broker did not accept the token; is it valid there, and has it not run out?"
		}
		p.kind = BadLogin
		return "the user name or the password is wrong"
	case stepMetadata:
		if closed && p.cluster.SASL.Mechanism == "" {
			p.kind = WantsSASL
			return "the port seems to want SASL, and this side is not set to use it"
		}
		if closed {
			return "the broker closed the connection of a user that it had accepted"
		}
	}
	return "the broker answers, and not as expected"
}
