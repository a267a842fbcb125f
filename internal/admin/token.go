package admin

import (
	"crypto/subtle"
	"net/http"
	"strings"
)

// guard lets in only who knows the token, if there is one. Whether the process
// lives and is ready is told to everybody: those who ask can't say who they are.
// A backup has a secret of its own, which is as good.
func (s Source) guard(next http.Handler) http.Handler {
	if s.Token == "" {
		return next
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
