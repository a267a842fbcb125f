package pawl

import (
	"slices"
	"strings"
	"testing"

	"github.com/pawlstream/pawl/internal/config"
)

// Commands know the settings of all programs, whose files they share.
func TestNamesOfSettings(t *testing.T) {
	var s settings
	var w workSettings
	var names []string
	for _, setting := range slices.Concat(s.table(), w.table()) {
		if !setting.FlagOnly {
			names = append(names, setting.Name)
		}
		if setting.Secret {
			names = append(names, setting.Name+"-file")
		}
	}
	names = append(names, "config", "context")
	slices.Sort(names)
	names = slices.Compact(names)
	if !slices.Equal(names, config.Names) {
		t.Errorf("config.Names are\n%s\nand the programs' are\n%s", strings.Join(config.Names, " "), strings.Join(names, " "))
	}
}

// What a field's error is explained by is a setting.
func TestFieldsHaveSettings(t *testing.T) {
	var s settings
	var w workSettings
	for _, program := range []struct {
		fields map[string]string
		table  []config.Setting
	}{{fields, s.table()}, {workFields, w.table()}} {
		for field, name := range program.fields {
			if !slices.ContainsFunc(program.table, func(s config.Setting) bool { return s.Name == name }) {
				t.Errorf("the setting %s of the field %s is not in the table", name, field)
			}
		}
	}
}
