package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
)

// The forms of output.
const (
	asTable = "table"
	asJSON  = "json"
	asYAML  = "yaml"
)

func addOutput(cmd *cobra.Command, output *string) {
	cmd.Flags().StringVarP(output, "output", "o", asTable, "what is printed: table, json or yaml")
	completeFlag(cmd, "output", fixed(asTable, asJSON, asYAML))
}

func checkOutput(cmd *cobra.Command, output string) error {
	if output != asTable && output != asJSON && output != asYAML {
		return usagef(cmd, "--output %q: want table, json or yaml", output)
	}
	return nil
}

// silent is the log of what nobody is to hear of.
var silent = slog.New(slog.DiscardHandler)

// documentAll prints things of one kind, tables with a line between them.
func documentAll[T interface{ show(*table) }](o *operation, things []T) error {
	return o.document(things, func(t *table) {
		for i, thing := range things {
			if i > 0 {
				t.line("")
			}
			thing.show(t)
		}
	})
}

// document prints a thing in the form that is asked for; show prints it as a
// table.
func (o *operation) document(thing any, show func(t *table)) error {
	var b bytes.Buffer
	switch o.output {
	case asJSON:
		enc := json.NewEncoder(jsonWriter{&b})
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		if err := enc.Encode(thing); err != nil {
			return fmt.Errorf("print: %w", err)
		}
	case asYAML:
		if err := writeYAML(&b, thing); err != nil {
			return fmt.Errorf("print: %w", err)
		}
	default:
		t := newTable(&b)
		show(t)
		if err := t.flush(); err != nil {
			return fmt.Errorf("print: %w", err)
		}
	}
	if _, err := o.cmd.OutOrStdout().Write(b.Bytes()); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

// table prints rows in columns. What is in a cell is on one line and visible.
type table struct{ w *tabwriter.Writer }

func newTable(to io.Writer) *table {
	return &table{tabwriter.NewWriter(to, 0, 8, 2, ' ', 0)}
}

func (t *table) row(cells ...any) {
	for i, c := range cells {
		cell := printable(fmt.Sprint(c))
		if cell == "" {
			cell = "-"
		}
		if i < len(cells)-1 {
			cell += "\t"
		}
		fmt.Fprint(t.w, cell) // its error comes with flush
	}
	fmt.Fprintln(t.w)
}

// line prints a line that is no row.
func (t *table) line(format string, args ...any) {
	fmt.Fprintln(t.w, printable(fmt.Sprintf(format, args...)))
}

func (t *table) flush() error { return t.w.Flush() }

// writeYAML writes what JSON would say as YAML, so that both have the same
// members, in the same order.
func writeYAML(to io.Writer, thing any) error {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(thing); err != nil {
		return err
	}
	dec := json.NewDecoder(&text)
	dec.UseNumber()
	node, err := yamlNode(dec)
	if err != nil {
		return err
	}
	out := yaml.NewEncoder(yamlWriter{to})
	out.SetIndent(2)
	if err := out.Encode(node); err != nil {
		return err
	}
	return out.Close()
}

// yamlNode reads one value.
func yamlNode(dec *json.Decoder) (*yaml.Node, error) {
	token, err := dec.Token()
	if err != nil {
		return nil, err
	}
	scalar := func(tag, value string) (*yaml.Node, error) {
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: value}, nil
	}
	switch v := token.(type) {
	case json.Delim:
		n := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
		if v == '{' {
			n.Kind, n.Tag = yaml.MappingNode, "!!map"
		}
		for dec.More() {
			item, err := yamlNode(dec)
			if err != nil {
				return nil, err
			}
			n.Content = append(n.Content, item)
		}
		if len(n.Content) == 0 {
			n.Style = yaml.FlowStyle
		}
		_, err := dec.Token() // the end of it
		return n, err
	case string:
		n := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: v}
		if strings.ContainsFunc(v, func(r rune) bool { return !unicode.IsPrint(r) }) {
			n.Style = yaml.DoubleQuotedStyle // in which it can be escaped
		}
		return n, nil
	case json.Number:
		tag := "!!int"
		if strings.ContainsAny(v.String(), ".eE") {
			tag = "!!float"
		}
		return scalar(tag, v.String())
	case bool:
		return scalar("!!bool", fmt.Sprint(v))
	}
	return scalar("!!null", "null")
}

// yamlWriter writes YAML on, with everything that is not a visible character,
// which stands in double quotes only, as an escape of YAML's.
type yamlWriter struct{ to io.Writer }

func (w yamlWriter) Write(p []byte) (int, error) {
	var b []byte
	for _, r := range string(p) {
		switch {
		case r == '\n' || r == ' ' || unicode.IsPrint(r):
			b = append(b, string(r)...)
		default:
			b = fmt.Appendf(b, `\U%08X`, r)
		}
	}
	if _, err := w.to.Write(b); err != nil {
		return 0, err
	}
	return len(p), nil
}
