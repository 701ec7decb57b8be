package run

import (
	"runtime"
	"runtime/debug"
)

// version is set by the release build: go build -ldflags "-X postrider.dev/pkg/run.version=v1.2.3".
var version string // the linker can set nothing but a package variable

// Build says which program this is.
type Build struct {
	Version string `json:"version"`          // the release, or "dev"
	Commit  string `json:"commit,omitempty"` // the revision; "+changes" follows if the tree had uncommitted ones
	Time    string `json:"time,omitempty"`   // when that revision was committed, RFC 3339
	Go      string `json:"go"`               // the toolchain
}

// BuildInfo returns what the linker and the toolchain recorded in this program.
func BuildInfo() Build {
	b := Build{Version: version, Go: runtime.Version()}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				b.Commit = s.Value + b.Commit
			case "vcs.time":
				b.Time = s.Value
			case "vcs.modified":
				if s.Value == "true" {
					b.Commit += "+changes"
				}
			}
		}
	}
	if b.Version == "" {
		b.Version = "dev"
	}
	return b
}
