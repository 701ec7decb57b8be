package postrider_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	postrider "postrider.dev/sdk"
)

// What gRPC does not carry, no server can say a code to.
func TestARequestLargerThanGRPCTakesHasTheCodeOfOneThatIsTooLargeAndHarmsNoOther(t *testing.T) {
	t.Parallel()
	held, goOn := make(chan struct{}), make(chan struct{})
	n := start(t, &node{onPush: func(_ int, req *queuev1.PushRequest) (*queuev1.PushResponse, error) {
		close(held)
		<-goOn
		return queued(req), nil
	}})
	c := dial(t, n)
	other := make(chan error, 1)
	go func() {
		_, err := c.Push(t.Context(), "q", postrider.Message{Payload: []byte("small")})
		other <- err
	}()
	<-held // it waits for its answer on the stream of all
	large := make([]byte, 41<<20)

	for name, send := range map[string]func() error{
		"a push": func() error {
			_, err := c.Push(t.Context(), "q", postrider.Message{Payload: large})
			return err
		},
		"a push with a key, which is repeated while that may help": func() error {
			_, err := c.Push(t.Context(), "q", postrider.Message{Payload: large, IdempotencyKey: "k"})
			return err
		},
		"a transaction": func() error {
			_, err := c.Transact(t.Context(), new(postrider.Transaction).Push("q", postrider.Message{Payload: large}))
			return err
		},
	} {
		err := send()
		refused, ok := errors.AsType[*postrider.Error](err)
		require.True(t, ok, "%s: %v", name, err)
		require.Equal(t, "PAYLOAD_TOO_LARGE", refused.Code, name)
		require.Equal(t, codes.InvalidArgument, refused.Status, name)
		require.NotErrorIs(t, err, postrider.ErrOutcomeUnknown, name)
	}

	close(goOn)
	require.NoError(t, <-other)
}
