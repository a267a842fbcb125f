package pawl

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// tlsFiles is how a program is told to use TLS.
type tlsFiles struct {
	on         bool
	ca         string
	cert, key  string
	serverName string
}

func (f tlsFiles) wanted() bool { return f != tlsFiles{} }

// load reads the files, and returns nil if TLS is not wanted.
func (f tlsFiles) load() (*tls.Config, error) {
	if !f.wanted() {
		return nil, nil
	}
	var errs []error
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: f.serverName}
	if f.ca != "" {
		pem, err := os.ReadFile(f.ca)
		if err != nil {
			errs = append(errs, fmt.Errorf("--tls-ca: %w", err))
		} else {
			c.RootCAs = x509.NewCertPool()
			if !c.RootCAs.AppendCertsFromPEM(pem) {
				errs = append(errs, fmt.Errorf("--tls-ca: %s holds no certificate in PEM form", f.ca))
			}
		}
	}
	switch {
	case f.cert == "" && f.key == "":
	case f.cert == "" || f.key == "":
		errs = append(errs, errors.New("--tls-cert and --tls-key go together, and one of them is not set"))
	default:
		pair, err := tls.LoadX509KeyPair(f.cert, f.key)
		if err != nil {
			errs = append(errs, fmt.Errorf("--tls-cert %s with --tls-key %s: %w", f.cert, f.key, err))
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, errors.Join(errs...)
}
