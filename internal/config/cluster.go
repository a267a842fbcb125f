package config

import (
	"errors"
	"fmt"

	"github.com/pawlstream/pawl/cluster"
)

// ClusterSettings are the settings by which a program is told how brokers are
// reached, all but the brokers themselves. The files of TLS go to f, which is
// loaded after them, by LoadCluster.
func ClusterSettings(c *cluster.Cluster, f *TLSFiles) []Setting {
	s := &c.SASL
	return []Setting{
		{Name: "tls", Value: Bool(&f.On), Cluster: true, Help: "use TLS; the other TLS settings imply it"},
		{Name: "tls-ca", Value: Path(&f.CA, "FILE"), Cluster: true, Unset: "the system's", Help: "certificates that sign the brokers'"},
		{Name: "tls-cert", Value: Path(&f.Cert, "FILE"), Cluster: true, Help: "certificate of this client"},
		{Name: "tls-key", Value: Path(&f.Key, "FILE"), Cluster: true, Help: "key of this client's certificate"},
		{Name: "tls-server-name", Value: Text(&f.ServerName, "HOST"), Cluster: true, Unset: "the host of each broker's address", Help: "name that the brokers' certificates must have"},
		{Name: "sasl-mechanism", Value: FoldedChoice(&s.Mechanism, cluster.Plain, cluster.ScramSHA256, cluster.ScramSHA512, cluster.OAuthBearer), Cluster: true, Unset: "none", Help: "how to log in"},
		{Name: "sasl-username", Value: Text(&s.Username, "NAME"), Cluster: true, Help: "who logs in; for a token endpoint, the client's ID"},
		{Name: "sasl-password", Value: SecretText(&s.Password), Cluster: true, Secret: true, Help: "password, or the client's secret; there is no flag for it"},
		{Name: "sasl-token", Value: SecretText(&s.Token), Cluster: true, Secret: true, File: &s.TokenFile, Help: "token of OAUTHBEARER; there is no flag for it"},
		{Name: "sasl-token-url", Value: Endpoint(&s.TokenURL), Cluster: true, Help: "token endpoint of OAuth 2.0, which is asked for a token by the client's ID and secret"},
		{Name: "sasl-scope", Value: Text(&s.Scope, "SCOPE"), Cluster: true, Help: "scope that is asked for there"},
	}
}

// BrokersSetting is the setting of the brokers.
func BrokersSetting(c *cluster.Cluster, unset string) Setting {
	return Setting{Name: brokersSetting, Value: List(&c.Brokers, "HOST:PORT"), Cluster: true, Unset: unset, Help: "Kafka brokers to start from"}
}

// clusterFields has the setting by the field of a cluster.
var clusterFields = map[string]string{
	"Brokers":        brokersSetting,
	"SASL.Mechanism": "sasl-mechanism",
	"SASL.Username":  "sasl-username",
	"SASL.Password":  "sasl-password",
	"SASL.Token":     "sasl-token",
	"SASL.TokenURL":  "sasl-token-url",
}

// CheckCluster reports everything that is wrong with a cluster, by what has set
// it. prefix begins the names of its settings, where they are not those of the
// program's own cluster.
func (l *Loaded) CheckCluster(c cluster.Cluster, prefix string) error {
	settings := make(map[string]string)
	for field, setting := range clusterFields {
		settings[field] = prefix + setting
	}
	return l.Explain(c.Validate(), settings)
}

// LoadCluster finishes what ClusterSettings has begun: it loads the files of
// TLS, and checks what was set. prefix is that of CheckCluster.
func (l *Loaded) LoadCluster(c *cluster.Cluster, f TLSFiles, prefix string) error {
	tls, err := f.load(l, prefix)
	c.TLS = tls
	return errors.Join(err, l.CheckCluster(*c, prefix))
}

// explainField names, in front of what is wrong with a field, what has set it,
// or behind it what sets it.
func (l *Loaded) explainField(setting string, err error) error {
	for _, s := range l.settings {
		if s.Name != setting {
			continue
		}
		switch text, ok := l.text[setting]; {
		case !ok && s.Secret:
			return fmt.Errorf("%w: set %s or %s%s", err, s.variable(), s.flag(), fileSuffix)
		case !ok:
			return fmt.Errorf("%w: set %s", err, s.flag())
		case s.Secret:
			return fmt.Errorf("%s: %w", l.Named(setting), err)
		default:
			return fmt.Errorf("%s %q: %w", l.Named(setting), redacted(text), err)
		}
	}
	return err
}
