//go:build race

package broker

// raced says that the race detector is on, which has memory of its own resident
// for what the process uses.
const raced = true
