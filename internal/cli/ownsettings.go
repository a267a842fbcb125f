package cli

import (
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/pawlstream/pawl/internal/config"
)

// ownSettings are the settings of a command that runs a broker, or works on the
// files of one, and so reaches no cluster: from flags, variables, a file and
// defaults, like those of every program.
type ownSettings struct {
	cmd    *cobra.Command
	read   func(config.Input) (*config.Loaded, error)
	output string // how --print-config prints
}

// brokerNames are the settings that such commands have and no program.
var brokerNames = []string{"dir", "free-space", "set", "tls-client-ca", "to", "topic", "unsynced", "users"}

func addOwn(cmd *cobra.Command, table []config.Setting) *ownSettings {
	s := &ownSettings{cmd: cmd, read: config.AddFlags(cmd.Flags(), table)}
	cmd.Flags().StringVarP(&s.output, "output", "o", "yaml", "how --print-config prints: yaml or json")
	completeFlag(cmd, "output", fixed("yaml", "json"))
	cmd.PreRunE = printing(func() (*config.Loaded, error) { return s.settings(os.Environ()) })
	return s
}

func (s *ownSettings) settings(env []string) (*config.Loaded, error) {
	if s.output != "yaml" && s.output != "json" {
		return nil, usagef(s.cmd, "--output %q: want yaml or json", s.output)
	}
	loaded, err := s.read(config.Input{Env: env, Others: slices.Concat(config.Names, brokerNames)})
	if err != nil {
		return nil, usageError{err, s.cmd}
	}
	return loaded, nil
}

// load fills the settings in.
func (s *ownSettings) load(env []string) (*config.Loaded, error) {
	loaded, err := s.settings(env)
	if err != nil {
		return nil, err
	}
	if s.cmd.Flags().Changed("output") {
		return nil, usagef(s.cmd, "--output is for --%s, which is not set", config.PrintSetting)
	}
	return loaded, nil
}
