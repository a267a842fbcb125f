package admin

import (
	"bytes"
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Access is how another process of the same user reaches the admin port of one
// that serves a broker. It is kept in a file that this user alone can read.
type Access struct {
	Address string `json:"address"`
	Secret  string `json:"secret"`
}

// accessFile is where an Access is, in the broker's directory.
const accessFile = "admin.json"

// Announce puts the access into the broker's directory. What it returns takes
// it away, unless another process has put its own there meanwhile.
func (a Access) Announce(dir string) (forget func() error, err error) {
	text, err := json.Marshal(a)
	if err != nil {
		return nil, err
	}
	name := filepath.Join(dir, accessFile)
	f, err := os.CreateTemp(dir, accessFile+".*") // which this user alone can read
	if err != nil {
		return nil, err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return nil, errors.Join(err, os.Remove(f.Name()))
	}
	return func() error {
		now, err := os.ReadFile(name)
		if err != nil || !bytes.Equal(now, text) {
			return err
		}
		return os.Remove(name)
	}, nil
}

// ReadAccess reads what Announce has put into a broker's directory.
func ReadAccess(dir string) (a Access, err error) {
	name := filepath.Join(dir, accessFile)
	text, err := os.ReadFile(name)
	if err != nil {
		return a, err
	}
	if err := json.Unmarshal(text, &a); err != nil {
		return a, fmt.Errorf("read %s: %w", name, err)
	}
	return a, nil
}

const backupPath = "/v1/backup"

type backupRequest struct {
	Dir string `json:"dir"`
}

// backup copies the broker's data. Whoever asks must know the secret: the port
// may be reached by others, and by pages that a browser on this machine shows.
func (s Source) backup(w http.ResponseWriter, r *http.Request) {
	given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok || s.Secret == "" || subtle.ConstantTimeCompare([]byte(given), []byte(s.Secret)) != 1 {
		text(w, http.StatusForbidden, "the secret is wrong")
		return
	}
	var req backupRequest
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(&req); err != nil {
		text(w, http.StatusBadRequest, "read the request: "+err.Error())
		return
	}
	if !filepath.IsAbs(req.Dir) {
		text(w, http.StatusBadRequest, fmt.Sprintf("directory %q: want an absolute path", req.Dir))
		return
	}
	// A copy to another disk takes as long as it takes.
	if err := http.NewResponseController(w).SetWriteDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
		s.logger().Warn("a long backup may not be answered", "error", err)
	}
	if err := s.Backup(req.Dir); err != nil {
		s.logger().Error("backup", "dir", req.Dir, "error", err)
		text(w, http.StatusInternalServerError, err.Error())
		return
	}
	s.logger().Info("backed up", "dir", req.Dir)
	text(w, http.StatusOK, "backed up")
}

// RequestBackup asks a process that serves a broker to copy the broker's data
// to a directory, given by its absolute path on that process's machine.
func RequestBackup(ctx context.Context, a Access, dir string) error {
	body, err := json.Marshal(backupRequest{dir})
	if err != nil {
		return fmt.Errorf("encode the request: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+a.Address+backupPath, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("ask the process that has the directory: %w", err)
	}
	req.Header.Set("Authorization", "Bearer "+a.Secret)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("ask the process that has the directory: %w", err)
	}
	defer resp.Body.Close()
	said, err := io.ReadAll(io.LimitReader(resp.Body, bodyMax))
	switch {
	case err != nil:
		return fmt.Errorf("read what the process that has the directory says: %w", err)
	case resp.StatusCode != http.StatusOK:
		return errors.New(strings.TrimSpace(string(said)))
	}
	return nil
}
