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

// load reads the files, and returns nil if TLS is not wanted. Its errors name
// what has set each; prefix begins the names of the settings.
func (f TLSFiles) load(from *Loaded, prefix string) (*tls.Config, error) {
	if !f.Wanted() {
		return nil, nil
	}
	var errs []error
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: f.ServerName}
	if f.CA != "" {
		pem, err := os.ReadFile(f.CA)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", from.Named(prefix+"tls-ca"), err))
		} else {
			c.RootCAs = x509.NewCertPool()
			if !c.RootCAs.AppendCertsFromPEM(pem) {
				errs = append(errs, fmt.Errorf("%s: %s holds no certificate in PEM form", from.Named(prefix+"tls-ca"), f.CA))
			}
		}
	}
	switch {
	case f.Cert == "" && f.Key == "":
	case f.Cert == "":
		errs = append(errs, fmt.Errorf("%s goes together with %stls-cert, which is not set", from.Named(prefix+"tls-key"), prefix))
	case f.Key == "":
		errs = append(errs, fmt.Errorf("%s goes together with %stls-key, which is not set", from.Named(prefix+"tls-cert"), prefix))
	default:
		pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s %s with %s %s: %w", from.Named(prefix+"tls-cert"), f.Cert, from.Named(prefix+"tls-key"), f.Key, err))
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, errors.Join(errs...)
}
