package broker

import "errors"

var (
	// ErrClosed is what a closed broker answers.
	ErrClosed = errors.New("the broker is closed")

	// ErrFatal is why a broker stopped by itself: its storage met an error that
	// it can't go on after. What was acked is on disk.
	ErrFatal = errors.New("the broker's storage failed")

	// ErrLocked is what Open answers when another process has the directory.
	ErrLocked = errors.New("the directory is in use by another broker")

	// ErrNewerFormat is what Open answers to data of a later version.
	ErrNewerFormat = errors.New("the data were written by a newer version")

	// ErrCorrupt is what Open answers to data that can't be what it wrote.
	ErrCorrupt = errors.New("the data are corrupt")
)
