package consumer

import "runtime/debug"

// Version is the version of Pawl that this program is built with, as its build
// tells: that of the module, which is devel where the program is built from a
// working tree that names none. Start records and the status of a process
// have it.
var Version = versionOf(debug.ReadBuildInfo())

// versionOf finds this module among those of a build.
func versionOf(info *debug.BuildInfo, ok bool) string {
	const module, devel = "github.com/pawlstream/pawl", "devel"
	if !ok {
		return devel
	}
	for _, m := range append([]*debug.Module{&info.Main}, info.Deps...) {
		if m.Path != module {
			continue
		}
		if m.Replace != nil {
			m = m.Replace
		}
		if m.Version != "" && m.Version != "(devel)" {
			return m.Version
		}
	}
	return devel
}
