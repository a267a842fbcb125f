// Command webhook delivers the events of a topic to web services: see --help.
package main

import (
	"net/http"

	"github.com/pawlstream/pawl"
	"github.com/pawlstream/pawl/examples/webhook"
)

func main() { pawl.Work(webhook.Topic, webhook.Handler(http.DefaultClient)) }
