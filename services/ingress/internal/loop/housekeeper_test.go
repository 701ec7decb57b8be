package loop_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"postrider.dev/pkg/clock"
	"postrider.dev/services/ingress/internal/loop"
)

// trimmer answers in turn how many it forgot; a negative number is a failure.
type trimmer struct {
	mu      sync.Mutex // guards answers
	answers []int
}

func (s *trimmer) left() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.answers)
}

func (s *trimmer) TrimRequests(context.Context, int) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.answers[0]
	s.answers = s.answers[1:]
	if n < 0 {
		return 0, errors.New("away")
	}
	return n, nil
}

func TestTheHousekeeperTrimsAllOfItEachMinuteAndOutlivesFailures(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &trimmer{answers: []int{1000, 1000, 3, -1, 0}}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- loop.NewHousekeeper(s, clock.Real{}, zap.NewNop()).Run(ctx) }()

		for _, left := range []int{2, 1, 0} {
			<-time.After(time.Minute)
			synctest.Wait()
			require.Equal(t, left, s.left())
		}
		cancel()
		require.NoError(t, <-ended)
	})
}
