package pawl

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	"github.com/pawlstream/pawl/internal/admin"
)

// port is the admin port of a program while it runs.
type port struct {
	log     *slog.Logger
	addr    string
	serving context.Context
	cancel  context.CancelFunc
	served  chan error // by the server, at its end

	file      string        // that holds the address, for who knows the state directory; empty: none
	announced chan struct{} // closed when that is done; nil without a file
}

// openPort serves the admin API until the port is closed.
func openPort(ctx context.Context, address string, source admin.Source) (*port, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("serve the admin API: %w", err)
	}
	p := &port{log: source.Logger, addr: listener.Addr().String(), served: make(chan error, 1)}
	p.log.Info("serving the admin API", "url", "http://"+p.addr)
	// The API is there while the program drains, which ctx begins.
	p.serving, p.cancel = context.WithCancel(context.WithoutCancel(ctx))
	go func() { p.served <- admin.Serve(p.serving, listener, source) }()
	return p, nil
}

// announce writes the address to the file admin in the state directory, once
// this process holds that.
func (p *port) announce(stateDir string, held <-chan struct{}) {
	p.file, p.announced = filepath.Join(stateDir, "admin"), make(chan struct{})
	go func() {
		defer close(p.announced)
		select {
		case <-held:
			if err := writeWhole(p.file, p.addr+"\n"); err != nil {
				p.log.Warn("the admin address is not in the state directory", "error", err)
			}
		case <-p.serving.Done():
		}
	}()
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
	err := <-p.served
	if p.announced != nil {
		<-p.announced
		// The directory may be another process's by now, and so the file.
		if text, readErr := os.ReadFile(p.file); readErr == nil && string(text) == p.addr+"\n" {
			err = errors.Join(err, os.Remove(p.file))
		}
	}
	if err != nil {
		return fmt.Errorf("end the admin API: %w", err)
	}
	return nil
}
