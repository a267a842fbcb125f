//go:build !synctests

package kafka

// virtual says that the client library can run in virtual time.
const virtual = false
