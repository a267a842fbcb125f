//go:build !linux

package cli

import "errors"

// diskOf is for Linux alone.
func diskOf(string) (free uint64, kind string, err error) { return 0, "", errors.ErrUnsupported }
