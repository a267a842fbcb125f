package config

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// TLSFiles is how a program is told to use TLS.
type TLSFiles struct {
	On         bool
	CA         string
	Cert, Key  string
	ServerName string
}

// Wanted says whether anything of TLS is set.
func (f TLSFiles) Wanted() bool { return f != TLSFiles{} }

// Load reads the files, and returns nil if TLS is not wanted.
func (f TLSFiles) Load() (*tls.Config, error) {
	if !f.Wanted() {
		return nil, nil
	}
	var errs []error
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: f.ServerName}
	if f.CA != "" {
		pem, err := os.ReadFile(f.CA)
		if err != nil {
			errs = append(errs, fmt.Errorf("--tls-ca: %w", err))
		} else {
			c.RootCAs = x509.NewCertPool()
			if !c.RootCAs.AppendCertsFromPEM(pem) {
				errs = append(errs, fmt.Errorf("--tls-ca: %s holds no certificate in PEM form", f.CA))
			}
		}
	}
	switch {
	case f.Cert == "" && f.Key == "":
	case f.Cert == "" || f.Key == "":
		errs = append(errs, errors.New("--tls-cert and --tls-key go together, and one of them is not set"))
	default:
		pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		if err != nil {
			errs = append(errs, fmt.Errorf("--tls-cert %s with --tls-key %s: %w", f.Cert, f.Key, err))
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, errors.Join(errs...)
}
