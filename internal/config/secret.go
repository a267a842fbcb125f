package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

const fileSuffix = "-file"

// secretFile is the setting of the file that a secret is in.
type secretFile struct {
	path
	of   string
	at   *string
	kept bool // the path is what is wanted, and not what the file holds now
}

// expand adds the setting of its file to each secret.
func expand(settings []Setting) []Setting {
	all := make([]Setting, 0, len(settings)+1)
	for _, s := range settings {
		all = append(all, s)
		if s.Secret {
			at, kept, help := s.File, s.File != nil, "file that holds it"
			if kept {
				help += ", and is read anew each time that it is needed"
			} else {
				at = new(string)
			}
			all = append(all, Setting{
				Name:    s.Name + fileSuffix,
				Help:    help,
				Value:   secretFile{Path(at, "FILE").(path), s.Name, at, kept},
				Cluster: s.Cluster,
			})
		}
	}
	return all
}

// oneSecret makes each secret come from one place, the text itself or a file:
// where one layer has either, those below have neither.
func (l *loader) oneSecret(layers []layer) {
	for _, s := range l.settings {
		f, ok := s.Value.(secretFile)
		if !ok {
			continue
		}
		found := false
		for rank := len(layers) - 1; rank >= 0; rank-- {
			at := layers[rank]
			if found {
				at.remove(s.Name)
				at.remove(f.of)
				continue
			}
			if at.has(s.Name) && at.has(f.of) {
				l.errs = append(l.errs, fmt.Errorf("%s and %s are both set: one of them says it", at.from[f.of].named, at.from[s.Name].named))
				at.remove(s.Name)
			}
			found = at.has(s.Name) || at.has(f.of)
		}
	}
}

// readSecret fills a secret from its file.
func (l *loader) readSecret(f secretFile, from string) {
	text, err := readSmall(*f.at)
	if err != nil {
		l.errs = append(l.errs, fmt.Errorf("%s: read %s: %w", from, strings.ReplaceAll(f.of, "-", " "), err))
		return
	}
	secret := strings.TrimSuffix(strings.TrimSuffix(string(text), "\n"), "\r")
	if secret == "" {
		err = errors.New("the file is empty")
	} else if !f.kept {
		err = l.settings[l.find(func(s Setting) bool { return s.Name == f.of })].Value.Set(secret)
	}
	if err != nil {
		l.errs = append(l.errs, fmt.Errorf("%s %q: %w", from, *f.at, err))
	}
}

// smallMax is the size of the longest file that is read as a secret or as
// settings. A device file has no end.
const smallMax = 64 << 10

func readSmall(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, smallMax+1))
	if err == nil && len(text) > smallMax {
		err = fmt.Errorf("%s is longer than %d bytes", path, smallMax)
	}
	return text, err
}
