// Command wordcount counts the words of a topic: see --help.
package main

import (
	"github.com/pawlstream/pawl"
	"github.com/pawlstream/pawl/examples/wordcount"
)

func main() { pawl.Main(wordcount.Counter{}) }
