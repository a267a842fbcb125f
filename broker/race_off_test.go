//go:build !race

package broker

// raced says that the race detector is on.
const raced = false
