package cli

import (
	"context"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"time"
)

// isLoopback says whether nobody but this machine reaches an address with the
// host.
func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func hostOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return host
}

// connectable says whether an address is one that can be connected to at all.
func connectable(address string) bool {
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" {
		return false
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		return false
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}

// containerName is how a container is called that was given no name: others
// don't know it.
var containerName = regexp.MustCompile(`^[0-9a-f]{12}$`)

// reachTime bounds how long an address is tried.
const reachTime = 3 * time.Second

// unreachable returns why clients may not reach an address, as far as that can
// be told from here, or nothing. hostname is this machine's.
func unreachable(ctx context.Context, address, hostname string) string {
	host := hostOf(address)
	if host == hostname && containerName.MatchString(host) {
		return "it is the name of a container, which only the container itself knows"
	}
	ctx, cancel := context.WithTimeout(ctx, reachTime)
	defer cancel()
	if net.ParseIP(host) == nil {
		if _, err := net.DefaultResolver.LookupHost(ctx, host); err != nil {
			return fmt.Sprintf("its host can't be resolved here: %v", err)
		}
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return fmt.Sprintf("it can't be reached from here: %v", err)
	}
	// Whether its end is heard says nothing of the address.
	_ = conn.Close()
	return ""
}
