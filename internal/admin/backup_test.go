package admin

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Only who knows the secret makes backups, to directories with an absolute
// path; what goes wrong with one is told.
func TestBackup(t *testing.T) {
	var asked []string
	broken := errors.New("the disk is full")
	s := source(nil)
	s.Secret = "open sesame"
	s.Backup = func(dir string) error {
		asked = append(asked, dir)
		if dir == "/full" {
			return broken
		}
		return nil
	}
	server := httptest.NewServer(Handler(s))
	defer server.Close()
	address := strings.TrimPrefix(server.URL, "http://")
	for _, tt := range []struct {
		secret, dir string
		want        string // in the error; empty for none
	}{
		{"open sesame", "/copy", ""},
		{"open sesame", "/full", "the disk is full"},
		{"open sesame", "copy", `directory "copy": want an absolute path`},
		{"open", "/copy", "the secret is wrong"},
		{"", "/copy", "the secret is wrong"},
	} {
		err := RequestBackup(t.Context(), Access{address, tt.secret}, tt.dir)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || err.Error() != tt.want) {
			t.Errorf("backup to %s with secret %q: %v, want %q", tt.dir, tt.secret, err, tt.want)
		}
	}
	if want := []string{"/copy", "/full"}; !slices.Equal(asked, want) {
		t.Errorf("backups to %q, want %q", asked, want)
	}
	req, err := http.NewRequest("POST", server.URL+backupPath, strings.NewReader(`{"dir": "/copy", "more": 1}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer open sesame")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != 400 {
		t.Errorf("a request with a field that is not known: status %d, want 400", resp.StatusCode)
	}
}

// Without a secret of its own, a process makes no backups.
func TestBackupWithoutSecret(t *testing.T) {
	s := source(nil)
	s.Backup = func(string) error {
		t.Error("a backup was made")
		return nil
	}
	server := httptest.NewServer(Handler(s))
	defer server.Close()
	if err := RequestBackup(t.Context(), Access{strings.TrimPrefix(server.URL, "http://"), ""}, "/copy"); err == nil {
		t.Error("no error")
	}
}

// A process that is gone is said to be.
func TestBackupOfNobody(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if err := RequestBackup(context.Background(), Access{l.Addr().String(), "x"}, "/copy"); err == nil || !strings.Contains(err.Error(), "ask the process that has the directory") {
		t.Errorf("%v, want whom it asked", err)
	}
}

// Where the API is can be read by this user alone, and is forgotten at the end,
// unless another process is there by then.
func TestAccess(t *testing.T) {
	dir := t.TempDir()
	one, two := Access{"127.0.0.1:1", "a"}, Access{"127.0.0.1:2", "b"}
	forgetOne, err := one.Announce(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ReadAccess(dir); err != nil || got != one {
		t.Errorf("%v, %v, want %v", got, err, one)
	}
	if info, err := os.Stat(filepath.Join(dir, accessFile)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v, want mode 0600", info.Mode(), err)
	}
	forgetTwo, err := two.Announce(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := forgetOne(); err != nil {
		t.Error(err)
	}
	if got, err := ReadAccess(dir); err != nil || got != two {
		t.Errorf("%v, %v, want %v", got, err, two)
	}
	if err := forgetTwo(); err != nil {
		t.Error(err)
	}
	if _, err := ReadAccess(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v, want that there is none", err)
	}
}
