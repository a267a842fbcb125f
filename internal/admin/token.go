package admin

import (
	"crypto/subtle"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
)

// guard lets in only who knows the token, if there is one. Whether the process
// lives and is ready is told to everybody: those who ask can't say who they are.
// A backup has a secret of its own, which is as good.
func (s Source) guard(next http.Handler) http.Handler {
	if s.Token == "" {
		return fromHere(next)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		known := ok && subtle.ConstantTimeCompare([]byte(given), []byte(s.Token)) == 1
		switch {
		case known && r.URL.Path == backupPath:
			r = r.Clone(r.Context())
			r.Header.Set("Authorization", "Bearer "+s.Secret)
		case known, r.URL.Path == backupPath, r.URL.Path == "/healthz", r.URL.Path == "/readyz":
		default:
			w.Header().Set("WWW-Authenticate", `Bearer realm="pawl"`)
			text(w, http.StatusUnauthorized, "the token is missing or wrong: send Authorization: Bearer TOKEN")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// fromHere refuses requests for another host than this one: a page of the web that
// has its own name lead here would otherwise read, through a browser, what is
// meant for this machine. Who has no name for it asks by address.
func fromHere(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
		_, err := netip.ParseAddr(strings.Trim(host, "[]"))
		if err != nil && host != "" && host != "localhost" && !strings.HasSuffix(host, ".localhost") && r.URL.Path != "/healthz" && r.URL.Path != "/readyz" {
			text(w, http.StatusMisdirectedRequest, "this is not "+strconv.Quote(host)+": ask by address or as localhost")
			return
		}
		next.ServeHTTP(w, r)
	})
}
