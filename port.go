package pawl

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pawlstream/pawl/consumer"
	"github.com/pawlstream/pawl/internal/admin"
)

// port is the admin port of a program while it runs.
type port struct {
	log    *slog.Logger
	addr   string
	cancel context.CancelFunc
	served chan error // by the server, at its end

	file      string // that holds the address, for who knows the state directory
	announced chan struct{}
}

// openPort serves the admin API of app until the port is closed. Once app
// holds the state directory, its address is in the file admin there.
func openPort(ctx context.Context, address, stateDir string, app *consumer.App, metrics prometheus.Gatherer, log *slog.Logger) (*port, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("serve the admin API: %w", err)
	}
	p := &port{
		log: log, addr: listener.Addr().String(), file: filepath.Join(stateDir, "admin"),
		served: make(chan error, 1), announced: make(chan struct{}),
	}
	log.Info("serving the admin API", "url", "http://"+p.addr)
	// The API is there while the program drains, which ctx begins.
	serving, cancel := context.WithCancel(context.WithoutCancel(ctx))
	p.cancel = cancel
	go func() {
		p.served <- admin.Serve(serving, listener, admin.Source{
			Ready:    func() error { return ready(ctx, app) },
			Status:   func() admin.Status { return statusOf(app.Status(), ready(ctx, app)) },
			Gatherer: metrics,
			Logger:   log,
		})
	}()
	go func() {
		defer close(p.announced)
		select {
		case <-app.Held():
			if err := writeWhole(p.file, p.addr+"\n"); err != nil {
				log.Warn("the admin address is not in the state directory", "error", err)
			}
		case <-serving.Done():
		}
	}()
	return p, nil
}

// writeWhole writes a file that others see whole or not at all.
func writeWhole(name, text string) error {
	if err := os.WriteFile(name+".new", []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}

// close ends the API. When it returns, all that openPort started has stopped.
func (p *port) close() error {
	p.cancel()
	<-p.announced
	err := <-p.served
	// The directory may be another process's by now, and so the file.
	if text, readErr := os.ReadFile(p.file); readErr == nil && string(text) == p.addr+"\n" {
		err = errors.Join(err, os.Remove(p.file))
	}
	if err != nil {
		return fmt.Errorf("end the admin API: %w", err)
	}
	return nil
}
