//go:build !linux

package consumer_test

import (
	"errors"
	"syscall"
)

// A disk of its own is what only Linux gives a process here: see TestFullDisk.

var errNoDisk = errors.New("no file system of its own")

func mountDisk(string, int) error { return errors.ErrUnsupported }

func ownMounts(*syscall.SysProcAttr) {}

func allowDescriptors(int, int) error { return errors.ErrUnsupported }
