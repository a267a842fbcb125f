package config

// ContextKey is what can be said in a context.
type ContextKey struct {
	Name string
	Form string // how its value is written; empty for true or false
	Help string
	Path bool // it names a file
}

// ContextKeys returns what can be said in a context, of what the settings say
// of a cluster.
func ContextKeys(settings []Setting) []ContextKey {
	var keys []ContextKey
	for _, s := range expand(settings) {
		switch {
		case !s.Cluster:
		case s.Secret:
			keys = append(keys, ContextKey{s.Name + envSuffix, "VARIABLE", "variable that holds the " + secretWords(s), false})
		default:
			_, isPath := s.Value.(path)
			keys = append(keys, ContextKey{s.Name, s.Value.Form(), s.Help, isPath || isSecretFile(s)})
		}
	}
	return keys
}

func secretWords(s Setting) string {
	if s.Name == "sasl-token" {
		return "token"
	}
	return "password, or the client's secret"
}
