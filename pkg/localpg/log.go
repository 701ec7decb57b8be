package localpg

import (
	"errors"
	"fmt"
	"io"
	"os"
)

const (
	// maxLog is the size above which the log starts anew at a start of the server.
	maxLog = 16 << 20
	// logTail is how much of it goes into an error.
	logTail = 4096
)

// openLog opens the log for appending and returns its present end.
func openLog(path string) (*os.File, int64, error) {
	flags := os.O_CREATE | os.O_WRONLY | os.O_APPEND
	if info, err := os.Stat(path); err == nil && info.Size() > maxLog {
		flags |= os.O_TRUNC
	}
	f, err := os.OpenFile(path, flags, 0o600) //nolint:gosec // the path is ours
	if err != nil {
		return nil, 0, fmt.Errorf("open log: %w", err)
	}
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, 0, errors.Join(fmt.Errorf("open log: %w", err), f.Close())
	}
	return f, end, nil
}

// readLog returns the end of what was written after offset.
func readLog(path string, offset int64) string {
	f, err := os.Open(path) //nolint:gosec // the path is ours
	if err != nil {
		return ""
	}
	defer f.Close() //nolint:errcheck // opened for reading
	if info, err := f.Stat(); err == nil {
		offset = max(offset, info.Size()-logTail)
	}
	text, err := io.ReadAll(io.NewSectionReader(f, offset, logTail))
	if err != nil {
		return ""
	}
	return string(text)
}
