package localpg

import (
	"errors"
	"fmt"
	"strings"
)

// ErrInUse says that another live process owns the data folder.
var ErrInUse = errors.New("data folder is used by another process")

// AptLine is the command that brings the missing programs on Debian and Ubuntu.
const AptLine = "apt-get install --no-install-recommends postgresql postgresql-client"

// MissingError says that no usable PostgreSQL programs were found, and where they were looked for.
type MissingError struct {
	Searched []string
	// TooOld lists folders that hold programs older than MinMajor.
	TooOld []string
}

func (e *MissingError) Error() string {
	s := fmt.Sprintf("no PostgreSQL programs (version %d or newer) in %s", MinMajor, strings.Join(e.Searched, ", "))
	if len(e.TooOld) > 0 {
		s += "; too old: " + strings.Join(e.TooOld, ", ")
	}
	return s + "; on Debian and Ubuntu: " + AptLine
}

// VersionError says that the data folder was made by another major version than the programs at hand.
// PostgreSQL cannot open it; the data needs those programs, pg_upgrade, or another folder.
type VersionError struct {
	Dir      string
	Data     int
	Binaries int
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("data folder %s belongs to PostgreSQL %d, but the programs found are version %d: set PGBIN to version %d, or choose another folder",
		e.Dir, e.Data, e.Binaries, e.Data)
}

// StartError says that the server ended before it accepted a connection, with the end of its log.
type StartError struct {
	Log string
	Err error
}

func (e *StartError) Error() string {
	return fmt.Sprintf("server did not start: %v: %s", e.Err, strings.TrimSpace(e.Log))
}

func (e *StartError) Unwrap() error { return e.Err }
