package postrider_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	postrider "postrider.dev/sdk"
)

func TestAPushWithoutKeysWhoseAnswerIsLostFailsAsUnknown(t *testing.T) {
	t.Parallel()
	n := start(t, &node{onPush: func(int, *queuev1.PushRequest) (*queuev1.PushResponse, error) {
		return nil, refusal(codes.Unavailable, "GONE")
	}})
	c := dial(t, n)

	_, err := c.Push(t.Context(), "q", postrider.Message{Payload: []byte("x")})

	require.ErrorIs(t, err, postrider.ErrOutcomeUnknown)
	require.Len(t, n.pushes, 1, "it must not be repeated")
}

func TestAPushWithKeysIsRepeatedUntilItIsAnswered(t *testing.T) {
	t.Parallel()
	n := start(t, &node{onPush: func(n int, req *queuev1.PushRequest) (*queuev1.PushResponse, error) {
		if n < 3 {
			return nil, refusal(codes.Unavailable, "GONE")
		}
		return queued(req), nil
	}})
	c := dial(t, n)

	results, err := c.Push(t.Context(), "q", postrider.Message{Payload: []byte("x"), IdempotencyKey: "k"})

	require.NoError(t, err)
	require.Equal(t, "m0", results[0].MessageID)
	require.Len(t, n.pushes, 3)
	for i, req := range n.pushes {
		require.Equal(t, i > 0, req.GetResent(), "push %d", i)
	}
}

func TestAPushWithKeysIsNotRepeatedWhereKeysAreIgnored(t *testing.T) {
	t.Parallel()
	n := start(t, &node{onPush: func(n int, _ *queuev1.PushRequest) (*queuev1.PushResponse, error) {
		if n == 1 {
			return nil, refusal(codes.Unavailable, "GONE")
		}
		return nil, &entryError{codes.FailedPrecondition, "OUTCOME_UNKNOWN"}
	}})
	c := dial(t, n)

	_, err := c.Push(t.Context(), "q", postrider.Message{Payload: []byte("x"), IdempotencyKey: "k"})

	require.ErrorIs(t, err, postrider.ErrOutcomeUnknown)
	require.Len(t, n.pushes, 2)
}

func TestAPushGoesToTheNextNodeWhenTheFirstIsAway(t *testing.T) {
	t.Parallel()
	away := &node{}
	second := start(t, &node{onPush: func(_ int, req *queuev1.PushRequest) (*queuev1.PushResponse, error) { return queued(req), nil }})
	c := dial(t, away, second)

	results, err := c.Push(t.Context(), "q", postrider.Message{Payload: []byte("x")})

	require.NoError(t, err)
	require.Len(t, results, 1)
}

func TestConcurrentPushesKeepTheirOwnAnswers(t *testing.T) {
	t.Parallel()
	n := start(t, &node{onPush: func(_ int, req *queuev1.PushRequest) (*queuev1.PushResponse, error) {
		return &queuev1.PushResponse{Results: []*queuev1.PushResult{{MessageId: string(req.GetItems()[0].GetPayload())}}}, nil
	}})
	c := dial(t, n)
	var g errgroup.Group
	for i := range 200 {
		g.Go(func() error {
			name := string(rune('a' + i))
			results, err := c.Push(t.Context(), "q", postrider.Message{Payload: []byte(name)})
			if err == nil {
				require.Equal(t, name, results[0].MessageID)
			}
			return err
		})
	}
	require.NoError(t, g.Wait())
}

func TestARefusedItemHasItsErrorAndTheOthersTheirs(t *testing.T) {
	t.Parallel()
	n := start(t, &node{onPush: func(_ int, req *queuev1.PushRequest) (*queuev1.PushResponse, error) {
		resp := queued(req)
		resp.Results[1] = &queuev1.PushResult{
			Status: queuev1.PushStatus_PUSH_STATUS_FAILED, Error: &queuev1.ItemError{Code: "NAME_TOO_LONG", Field: "partition"},
		}
		return resp, nil
	}})

	results, err := dial(t, n).Push(t.Context(), "q", postrider.Message{}, postrider.Message{})

	require.NoError(t, err)
	require.NoError(t, results[0].Err)
	require.Equal(t, "NAME_TOO_LONG", postrider.Code(results[1].Err))
}

func TestAClosedClientRefusesPushes(t *testing.T) {
	t.Parallel()
	n := start(t, &node{})
	c, err := postrider.Dial([]string{"nowhere:1"}, "k")
	require.NoError(t, err)
	require.NoError(t, c.Close())
	_ = n

	_, err = c.Push(t.Context(), "q", postrider.Message{})

	require.Error(t, err)
}
