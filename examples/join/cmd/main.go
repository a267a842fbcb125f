// Command join enriches orders with their customers: see --help.
package main

import (
	"github.com/pawlstream/pawl"
	"github.com/pawlstream/pawl/examples/join"
)

func main() { pawl.Main(join.Joiner{}) }
