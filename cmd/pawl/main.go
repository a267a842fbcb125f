// Command pawl shows and operates exactly-once stream shards: see pawl --help.
package main

import (
	"os"

	"github.com/pawlstream/pawl/internal/cli"
)

func main() { os.Exit(cli.Run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }
