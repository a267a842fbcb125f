package cli

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pawlstream/pawl/internal/config"
)

// flagError says what is wrong with a command's flags, in the words in which
// settings are refused: what was given, and what is wanted.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	var invalid *pflag.InvalidValueError
	var alone *pflag.ValueRequiredError
	var malformed *pflag.InvalidSyntaxError
	switch {
	case errors.As(err, &unknown):
		return unknownFlag(cmd, unknown)
	case errors.As(err, &invalid):
		f := invalid.GetFlag()
		return fmt.Errorf("--%s %q: %s", f.Name, invalid.GetValue(), flagHint(f, invalid))
	case errors.As(err, &alone):
		return fmt.Errorf("--%s: want a value with it", alone.GetFlag().Name)
	case errors.As(err, &malformed):
		return fmt.Errorf("%q is no flag: want --NAME or --NAME=VALUE", malformed.GetSpecifiedFlag())
	}
	return err
}

// flagHint is what a flag wants, which refused a value.
func flagHint(f *pflag.Flag, refused *pflag.InvalidValueError) string {
	switch kind := f.Value.Type(); kind {
	case "int", "int16", "int32", "int64", "uint64":
		return numberHint(kind, refused.GetValue())
	case "int32Slice":
		for part := range strings.SplitSeq(refused.GetValue(), ",") {
			if _, err := strconv.ParseInt(part, 0, 32); err != nil {
				return numberHint("int32", part) + ", or several with commas between them"
			}
		}
	case "float64":
		return "want a number"
	case "bool":
		return "want true or false"
	case "duration":
		return "want a duration such as 100ms, 30s or 5m"
	case "stringSlice":
		return `want one value or several with commas between them, and one that holds a comma or a quote in quotes: "a,b"`
	}
	return refused.Unwrap().Error() // the flag's own words
}

// numberHint is what a flag wants that takes whole numbers of a kind.
func numberHint(kind, text string) string {
	_, err := strconv.ParseInt(text, 0, 64)
	if kind != "uint64" {
		if err == nil || errors.Is(err, strconv.ErrRange) {
			if strings.HasPrefix(text, "-") {
				return "want a larger number"
			}
			return "want a smaller number"
		}
		return "want a whole number"
	}
	switch {
	case err == nil || errors.Is(err, strconv.ErrRange) && strings.HasPrefix(text, "-"):
		return "want at least 0"
	case errors.Is(err, strconv.ErrRange):
		return "want a smaller number"
	}
	return "want a whole number"
}

// unknownFlag names the flag that is nearest to one that is not known.
func unknownFlag(cmd *cobra.Command, unknown *pflag.NotExistError) error {
	name, dashes := unknown.GetSpecifiedName(), "--"
	if short := unknown.GetSpecifiedShortnames(); short != "" {
		name, dashes = short, "-"
	}
	var known []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			known = append(known, "--"+f.Name)
		}
	})
	return fmt.Errorf("unknown flag %s%s%s", dashes, name, config.Suggest("--"+name, known))
}
