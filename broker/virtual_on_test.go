//go:build synctests

package broker

// virtual says whether the client library was built for virtual time.
const virtual = true
