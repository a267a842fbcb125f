// Package devbroker is an in-process broker for development and tests, which
// keeps everything in memory, behind a network of its own that can be cut,
// frozen and delayed and that can lose replies.
package devbroker

import (
	"errors"
	"log/slog"
	"time"

	"github.com/pawlstream/pawl/cluster"
)

// Config says what broker to start.
type Config struct {
	Listen   string            // HOST:PORT to listen on for other programs; empty: in memory only
	Logger   *slog.Logger      // nil: silent
	Settings map[string]string // broker settings by Kafka's names
}

// Fault chooses requests, for [Broker.Fail], [Broker.DropReply] and
// [Broker.Hold].
type Fault struct {
	Host  string // only those of the named host; empty: of any
	Key   int16  // only those with this API key; -1: any
	Nth   int    // from the nth that matches on, counted from now; 0 is 1
	Times int    // how many; 0 is 1; -1: until Remove
	Code  int16  // Fail: the error code to answer with
	Err   error  // Fail: if not nil, the connection is closed instead of an answer
}

// Broker is one broker and the network around it.
type Broker struct{}

func Start(Config) (*Broker, error)                         { return nil, errors.ErrUnsupported }
func (b *Broker) Cluster() cluster.Cluster                  { return cluster.Cluster{} }
func (b *Broker) Host(name string) cluster.Cluster          { return cluster.Cluster{} }
func (b *Broker) Addr() string                              { return "" }
func (b *Broker) Close()                                    {}
func (b *Broker) Cut(host string)                           {}
func (b *Broker) Heal(host string)                          {}
func (b *Broker) Freeze(host string)                        {}
func (b *Broker) Thaw(host string)                          {}
func (b *Broker) Delay(host string, d time.Duration)        {}
func (b *Broker) Fail(f Fault) (remove func())              { return func() {} }
func (b *Broker) DropReply(f Fault) (remove func())         { return func() {} }
func (b *Broker) Hold(f Fault) (release func())             { return func() {} }
func (b *Broker) OnRequest(fn func(host string, key int16)) {}
