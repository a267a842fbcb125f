// Program filestats runs examples/filestats: pawl's flags say where.
package main

import (
	"github.com/pawlstream/pawl"
	"github.com/pawlstream/pawl/examples/filestats"
)

func main() { pawl.Main(filestats.New("").Consumers()...) }
