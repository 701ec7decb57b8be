package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"postrider.dev/tests/fleet"
)

// fillDisk leaves a spool no room while the database is away, so that pushes can be put nowhere, and while it is drained, so that nothing can be noted.
func (w *World) fillDisk(h *fleet.ProcessHost) action {
	return func(ctx context.Context, span time.Duration) error {
		before := spoolFailures(ctx, h.Dispatcher)
		if err := h.Disk.Fill(ctx); err != nil {
			return err
		}
		err := w.postgresAway(ctx, span)
		hold(ctx, span/2)
		w.refused.Add(int64(max(0, spoolFailures(ctx, h.Dispatcher)-before)))
		return errors.Join(err, h.Disk.Free(ctx))
	}
}

// spoolFailures asks a dispatcher how many writes of its spool failed; 0 where it does not answer: another fault may have struck it.
func spoolFailures(ctx context.Context, p *fleet.Process) int {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	n, err := failuresOf(ctx, "http://"+p.Admin+"/metrics")
	if err != nil {
		return 0
	}
	return n
}

func failuresOf(ctx context.Context, url string) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, fmt.Errorf("ask: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, fmt.Errorf("ask: %w", err)
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, fmt.Errorf("ask: %w", err)
	}
	_, rest, _ := strings.Cut(string(text), "\npostrider_dispatcher_spool_failures ")
	value, _, _ := strings.Cut(rest, "\n")
	n, err := strconv.Atoi(value)
	if err != nil {
		return 0, fmt.Errorf("no such metric: %w", err)
	}
	return n, nil
}
