package store

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// Whatever becomes of a file of a database, it is whole, or as it was earlier, or
// new, or says that it is corrupt, at once or when what is damaged is read, and is new once it was
// discarded: never an error that lasts.
func TestDamagedFiles(t *testing.T) {
	const keys, seed = 3_000, 8
	rng := rand.New(rand.NewPCG(seed, 1))
	config := func(dir string) Config {
		return Config{Dir: dir, Logger: slog.New(slog.DiscardHandler), Options: Options{MemTableSize: 256 << 10}}
	}
	whole := filepath.Join(t.TempDir(), "whole")
	o, err := Open(config(whole))
	if err != nil {
		t.Fatal(err)
	}
	for i := range keys {
		put(t, o, fmt.Sprint("k", i), strings.Repeat("v", 100)+fmt.Sprint(i), fmt.Sprint(i))
	}
	closeOwner(t, o)

	entries, err := os.ReadDir(whole)
	if err != nil {
		t.Fatal(err)
	}
	kinds, came := make(map[string]bool), make(map[string]int)
	for _, e := range entries {
		name := e.Name()
		text, err := os.ReadFile(filepath.Join(whole, name))
		if err != nil {
			t.Fatal(err)
		}
		kind, _, _ := strings.Cut(name, "-")
		if ext := filepath.Ext(name); ext == ".sst" || ext == ".log" {
			kind = ext
		}
		kinds[kind] = true
		noise := slices.Clone(text)
		for i := range noise {
			if rng.IntN(20) == 0 {
				noise[i] ^= byte(1 + rng.IntN(255))
			}
		}
		damages := map[string][]byte{"removed": nil, "a directory": nil, "emptied": {}, "cut in half": text[:len(text)/2], "longer": append(slices.Clone(text), "and more"...), "noise": noise}
		if name == lockFile { // nobody's disk makes one of it
			delete(damages, "a directory")
		}
		for _, damage := range slices.Sorted(maps.Keys(damages)) {
			dir := filepath.Join(t.TempDir(), "copy")
			if err := os.CopyFS(dir, os.DirFS(whole)); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, name)
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			switch {
			case damage == "a directory":
				err = os.Mkdir(path, 0o755)
			case damages[damage] != nil:
				err = os.WriteFile(path, damages[damage], 0o644)
			}
			if err != nil {
				t.Fatal(err)
			}
			outcome := openDamaged(config(dir), keys)
			came[outcome]++
			if outcome == "corrupt" {
				if err := Discard(dir); err != nil {
					t.Errorf("%s %s: discard: %v", name, damage, err)
				}
				outcome = openDamaged(config(dir), keys)
				if outcome != "new" {
					outcome = "after a discard: " + outcome
				}
			}
			if outcome != "whole" && outcome != "older" && outcome != "new" {
				t.Errorf("%s %s: %s (seed %d)", name, damage, outcome, seed)
			}
		}
	}
	for _, want := range []string{".sst", "MANIFEST", "OPTIONS", "LOCK", "marker.manifest", "marker.format"} {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(kinds)), func(k string) bool { return strings.HasPrefix(k, want) }) {
			t.Errorf("there is no file of the kind %s among %v", want, entries)
		}
	}
	if came["corrupt"] == 0 || came["whole"] == 0 {
		t.Errorf("what came of the damages: %v, want some that hurt and some that don't", came)
	}
	t.Logf("what came of the damages: %v", came)
}

// openDamaged opens a database that was whole up to some key, and says what came
// of it.
func openDamaged(c Config, keys int) string {
	o, err := Open(c)
	switch {
	case errors.Is(err, ErrCorrupt):
		return "corrupt"
	case err != nil:
		return "an error that lasts: " + err.Error()
	}
	outcome := look(o, keys)
	switch err := o.Close(); {
	case errors.Is(err, ErrCorrupt):
		return "corrupt"
	case err != nil:
		return "closed with " + err.Error()
	}
	return outcome
}

// look reads all keys of a database.
func look(o *Owner, keys int) string {
	if o.Meta() == nil {
		if _, ok, err := o.DB().Get([]byte("k0")); ok || err != nil {
			return fmt.Sprintf("new, and the first key is there: %v, %v", ok, err)
		}
		return "new"
	}
	position, err := strconv.Atoi(string(o.Meta()))
	if err != nil || position >= keys {
		return fmt.Sprintf("the position is %q, want less than %d", o.Meta(), keys)
	}
	for i := range keys {
		v, ok, err := o.DB().Get(fmt.Append(nil, "k", i))
		switch {
		case i > position && !ok && err == nil:
		case errors.Is(err, ErrCorrupt), errors.Is(err, ErrFatal):
			return "corrupt"
		case err != nil:
			return fmt.Sprintf("read k%d: %v", i, err)
		case !ok || !bytes.Equal(v, fmt.Append(nil, strings.Repeat("v", 100), i)):
			return fmt.Sprintf("k%d is %q, %v", i, v, ok)
		}
	}
	if position < keys-1 {
		return "older" // as after a power cut
	}
	return "whole"
}

// What a disk or a share that doesn't answer says is no damage: nothing is thrown
// away for it.
func TestOpenErrorOfTheMachineIsNoDamage(t *testing.T) {
	for _, e := range []error{syscall.EIO, syscall.ETIMEDOUT, syscall.ENODATA, syscall.ESTALE} {
		if err := openError(&os.PathError{Op: "read", Path: "000004.sst", Err: e}); !errors.Is(err, e) || errors.Is(err, ErrCorrupt) {
			t.Errorf("%v is told as %v", e, err)
		}
	}
	if err := openError(errors.New("file is cut short")); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a file that is cut short is told as %v, want ErrCorrupt", err)
	}
}
