//go:build synctests

package consumertest

// virtual says that the Kafka client can run in virtual time.
const virtual = true
