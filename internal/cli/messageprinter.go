package cli

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/pawlstream/pawl/topic"
)

// messagePrinter prints messages, one after the other.
type messagePrinter struct {
	to      *bufio.Writer
	output  string
	topics  bool // of more than one
	printed int64
	json    *json.Encoder
}

func newMessagePrinter(to io.Writer, output string, topics bool) *messagePrinter {
	p := &messagePrinter{to: bufio.NewWriterSize(to, 64<<10), output: output, topics: topics}
	p.json = json.NewEncoder(jsonWriter{p.to})
	p.json.SetEscapeHTML(false)
	return p
}

func (p *messagePrinter) flush() error {
	if err := p.to.Flush(); err != nil {
		return fmt.Errorf("print messages: %w", err)
	}
	return nil
}

func (p *messagePrinter) print(e topic.Envelope) (err error) {
	switch p.output {
	case asJSON:
		err = p.json.Encode(newMessage(e))
	case asYAML:
		if _, err = p.to.WriteString("---\n"); err == nil {
			err = writeYAML(p.to, newMessage(e))
		}
	default:
		err = p.row(e)
	}
	if err != nil {
		return fmt.Errorf("print messages: %w", err)
	}
	p.printed++
	return nil
}

// row prints a message on a line. Columns are as wide as most of what is in
// them: what is to come is not known.
func (p *messagePrinter) row(e topic.Envelope) error {
	if p.printed == 0 {
		if _, err := fmt.Fprintf(p.to, "%-10s %-24s %-20s %s\n", "OFFSET", "TIME", "KEY", "VALUE"); err != nil {
			return err
		}
	}
	where := fmt.Sprintf("%d:%d", e.Partition, e.Offset)
	if p.topics {
		where = printable(e.TopicName()) + ":" + where
	}
	at := "absurd: " + fmt.Sprint(e.Timestamp.UnixMilli())
	if y := e.Timestamp.UTC().Year(); y >= 1 && y <= 9999 {
		at = e.Timestamp.UTC().Format(timeForm)
	}
	var headers strings.Builder
	for _, h := range e.Headers {
		fmt.Fprintf(&headers, " [%s=%s]", printable(h.Key), bytesText(h.Value))
	}
	_, err := fmt.Fprintf(p.to, "%-10s %-24s %-20s %s%s\n", where, at, bytesText(e.Key), bytesText(e.Value), headers.String())
	return err
}
