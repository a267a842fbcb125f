package config

import (
	"errors"
	"fmt"
	"slices"

	"github.com/pawlstream/pawl/cluster"
)

// Cluster returns the cluster of a context, for a command that reaches it
// besides its own. flag is what names it. What flags, variables and files say
// is of the command's own cluster, and no part of this one: of env only the
// variables count that the context itself names.
func (c *Contexts) Cluster(flag, name string, env []string) (cluster.Cluster, error) {
	if name == "" {
		return cluster.Cluster{}, fmt.Errorf("--%s %q: want the name of a context", flag, name)
	}
	n, ok := c.find(name)
	if !ok {
		return cluster.Cluster{}, fmt.Errorf("--%s %q: %s has no such context%s", flag, name, c.file, Suggest(name, c.Names()))
	}
	var to cluster.Cluster
	var files TLSFiles
	l := newLoader(slices.Concat([]Setting{BrokersSetting(&to, "")}, ClusterSettings(&to, &files)))
	at, texts := place{c.file, name, "context " + name + ", "}, newLayer()
	for _, e := range l.entries(n, at) {
		l.takeOfContext(texts, e, at, Input{Env: env})
	}
	l.oneSecret([]layer{texts})
	if err := l.k.Load(texts, nil); err != nil {
		return cluster.Cluster{}, fmt.Errorf("merge settings: %w", err)
	}
	l.from = texts.from
	for _, s := range l.settings {
		l.set(s)
	}
	if err := joined(l.errs); err != nil {
		return cluster.Cluster{}, err
	}
	if len(to.Brokers) == 0 {
		return cluster.Cluster{}, fmt.Errorf("%s: context %s names no brokers", c.file, name)
	}
	tls, err := files.load(l.loaded(), "")
	to.TLS = tls
	// What is missing no flag can set: it is the context that has to say it.
	if err := errors.Join(err, to.Validate()); err != nil {
		return cluster.Cluster{}, fmt.Errorf("%s: context %s: %w", c.file, name, err)
	}
	return to, nil
}
