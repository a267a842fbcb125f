package consumer

import (
	"runtime/debug"
	"testing"
)

func TestVersion(t *testing.T) {
	const module = "github.com/pawlstream/pawl"
	other := debug.Module{Path: "example.org/shop", Version: "v9.9.9"}
	for _, c := range []struct {
		name string
		info *debug.BuildInfo
		want string
	}{
		{"no build information", nil, "devel"},
		{"our own program, installed", &debug.BuildInfo{Main: debug.Module{Path: module, Version: "v1.2.3"}}, "v1.2.3"},
		{"our own program, from a working tree", &debug.BuildInfo{Main: debug.Module{Path: module, Version: "(devel)"}}, "devel"},
		{"a test", &debug.BuildInfo{Main: debug.Module{Path: module}}, "devel"},
		{"a program that requires it", &debug.BuildInfo{Main: other, Deps: []*debug.Module{{Path: "a", Version: "v2.0.0"}, {Path: module, Version: "v0.4.0"}}}, "v0.4.0"},
		{"a program that replaces it by a directory", &debug.BuildInfo{Main: other, Deps: []*debug.Module{{Path: module, Version: "v0.4.0", Replace: &debug.Module{Path: "../pawl"}}}}, "devel"},
		{"a program that replaces it by a fork", &debug.BuildInfo{Main: other, Deps: []*debug.Module{{Path: module, Version: "v0.4.0", Replace: &debug.Module{Path: "example.org/pawl", Version: "v0.5.0"}}}}, "v0.5.0"},
		{"a program without it", &debug.BuildInfo{Main: other}, "devel"},
	} {
		if got := versionOf(c.info, c.info != nil); got != c.want {
			t.Errorf("%s: version %q, want %q", c.name, got, c.want)
		}
	}
}
