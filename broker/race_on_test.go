//go:build race

package broker

// raced says that the race detector is on: it keeps memory of its own for all
// memory that is in use, so the process has more resident than the broker uses.
const raced = true
