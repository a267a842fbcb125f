package pawl

import (
	"context"
	"errors"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/internal/admin"
)

// application is the body of a program of consumers.
type application struct {
	settings
	consumers []consumer.Consumer
}

func (a *application) general() general {
	return general{a.process, a.Memory}
}

// elsewhere is the configuration with a broker that need not be there.
func (a *application) elsewhere() consumer.Config {
	cfg := a.Config
	cfg.Cluster.Brokers = []string{"localhost:9092"}
	return cfg
}

// serve runs the consumers, with a broker if none is named, and the admin API
// beside them.
func (a *application) serve(ctx context.Context, p *program) (err error) {
	a.Logger = p.log
	registry := newRegistry()
	a.Registerer = registry
	var own *within
	if len(a.Cluster.Brokers) == 0 {
		// What is wrong is found before there is a broker, with a directory.
		if _, err := consumer.New(a.elsewhere(), a.consumers...); err != nil {
			return a.explain(err, fields)
		}
		if own, err = a.embedded.start(ctx, p, a.StateDir, a.DrainTimeout, registry); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, own.close()) }() // after everything that uses it
		a.Cluster = own.Cluster()
		a.Memory = max(a.Memory-own.memory, consumersLeast)
		own.say(p, a.StateDir)
		alive, cancel := own.alive(ctx)
		defer cancel()
		ctx = alive
	}
	p.warnOfPlainPasswords(a.Cluster)
	app, err := consumer.New(a.Config, a.consumers...)
	if err != nil {
		return a.explain(err, fields)
	}
	source := admin.Source{
		Ready:    func() error { return ready(ctx, app.Ready) },
		Status:   func() admin.Status { return statusOf(app.Status(), ready(ctx, app.Ready)) },
		Gatherer: registry,
		Logger:   p.log,
		Token:    string(a.adminToken),

		Application: insideOf(app, &p.level),
	}
	if own != nil {
		own.show(&source)
	}
	port, err := openPort(ctx, a.admin, source)
	if err != nil {
		return err
	}
	app.Announce(reachable(port.addr))
	port.announce(a.StateDir, app.Held())
	defer func() { err = errors.Join(err, port.close()) }()
	if own != nil {
		if err := own.announce(port.addr); err != nil {
			return err
		}
	}
	return app.Run(ctx)
}
