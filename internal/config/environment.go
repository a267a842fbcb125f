package config

import (
	"os"
	"slices"
	"strings"
)

// ClusterEnv returns an environment in which another program reaches the same
// cluster: the given one, with what is loaded here of the cluster in place of
// every setting that it has.
func (l *Loaded) ClusterEnv(env []string) []string {
	env = WithoutSettings(env)
	for _, s := range l.settings {
		if text, ok := l.text[s.Name]; ok && s.Cluster {
			env = append(env, s.variable()+"="+text)
		}
	}
	return env
}

// WithoutSettings returns an environment of which a program takes no setting,
// nor from a file in its working directory.
func WithoutSettings(env []string) []string {
	env = slices.DeleteFunc(slices.Clone(env), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return slices.ContainsFunc(Names, func(n string) bool { return variable(n) == name })
	})
	return append(env, variable(fileSetting)+"="+os.DevNull)
}
