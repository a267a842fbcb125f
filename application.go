package pawl

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/internal/admin"
	"github.com/pawlstream/pawl/internal/devbroker"
)

// application is the body of a program of consumers.
type application struct {
	settings
	consumers []consumer.Consumer
}

func (a *application) general() general {
	return general{a.logLevel, a.logFormat, a.version, a.Memory}
}

// serve runs the consumers, with a broker if none is named, and the admin API
// beside them.
func (a *application) serve(ctx context.Context, p *program) (err error) {
	a.Logger = p.log
	if len(a.Cluster.Brokers) == 0 {
		stop, err := a.startBroker(p)
		if err != nil {
			return err
		}
		defer stop() // after everything that uses it
	}
	p.warnOfPlainPasswords(a.Cluster)
	registry := newRegistry()
	a.Registerer = registry
	app, err := consumer.New(a.Config, a.consumers...)
	if err != nil {
		return usageError{err}
	}
	port, err := openPort(ctx, a.admin, admin.Source{
		Ready:    func() error { return ready(ctx, app.Ready) },
		Status:   func() admin.Status { return statusOf(app.Status(), ready(ctx, app.Ready)) },
		Gatherer: registry,
		Logger:   p.log,
	})
	if err != nil {
		return err
	}
	port.announce(a.StateDir, app.Held())
	defer func() { err = errors.Join(err, port.close()) }()
	return app.Run(ctx)
}

// startBroker starts a broker within the process, and makes a state directory
// that lives as long unless one is named.
func (a *application) startBroker(p *program) (stop func(), err error) {
	broker, err := devbroker.Start(devbroker.Config{Listen: a.listen})
	if err != nil {
		return nil, err
	}
	a.Cluster = broker.Cluster()
	made := ""
	if a.StateDir == "" {
		if made, err = os.MkdirTemp("", "pawl-"+a.Application+"-"); err != nil {
			broker.Close()
			return nil, fmt.Errorf("make state directory: %w", err)
		}
		a.StateDir = made
	}
	p.log.Info("no brokers are named, so one runs within this process: what it holds ends with it", "listen", broker.Addr(), "state", a.StateDir)
	return func() {
		broker.Close()
		if made == "" {
			return
		}
		if err := os.RemoveAll(made); err != nil {
			p.log.Warn("state directory is not removed", "error", err)
		}
	}, nil
}
