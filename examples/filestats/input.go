package filestats

import (
	"bytes"
	_ "embed"
	"io"
)

//go:embed data/file-changes.jsonl.gz
var input []byte

// Input returns the real input: gzip of one change a line, in JSON.
func Input() io.Reader { return bytes.NewReader(input) }
