//go:build synctests

package devbroker_test

// virtual says whether the client library was built for virtual time.
const virtual = true
