package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"postrider.dev/pkg/apierr"
	"postrider.dev/pkg/idempotency"
)

func TestAKeyIsOneToTwoHundredAndFiftyFiveBytesOfPrintableASCII(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sent   []string
		key    string
		reason string
	}{
		"none":      {},
		"short":     {sent: []string{"k"}, key: "k"},
		"longest":   {sent: []string{strings.Repeat("k", 255)}, key: strings.Repeat("k", 255)},
		"space":     {sent: []string{"a b"}, key: "a b"},
		"empty":     {sent: []string{""}, reason: "NAME_EMPTY"},
		"too long":  {sent: []string{strings.Repeat("k", 256)}, reason: "NAME_TOO_LONG"},
		"two":       {sent: []string{"a", "a"}, reason: "CONFLICTING_FIELDS"},
		"not ASCII": {sent: []string{"é"}, reason: "TOKEN_MALFORMED"},
		"control":   {sent: []string{"a\x7f"}, reason: "TOKEN_MALFORMED"},
	} {
		key, err := idempotency.Check(c.sent)
		require.Equal(t, c.reason, apierr.Reason(err), name)
		require.Equal(t, c.key, key, name)
	}
}

func TestARequestIsItsTenantMethodKeyAndBody(t *testing.T) {
	t.Parallel()
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(idempotency.Metadata, "k"))
	one, err := idempotency.NewRequest(ctx, "a", "/m", wrapperspb.String("x"))
	require.NoError(t, err)
	require.True(t, one.Keyed())
	class, id := one.Lock()

	other, err := idempotency.NewRequest(ctx, "a", "/m", wrapperspb.String("y"))
	require.NoError(t, err)
	require.NotEqual(t, one.Body, other.Body)
	otherClass, otherID := other.Lock()
	require.Equal(t, [2]int32{class, id}, [2]int32{otherClass, otherID}, "the body does not decide who runs")
	for _, r := range []idempotency.Request{{Tenant: "b", Method: "/m", Key: "k"}, {Tenant: "a", Method: "/n", Key: "k"}, {Tenant: "a", Method: "/m", Key: "l"}} {
		c, i := r.Lock()
		require.NotEqual(t, [2]int32{class, id}, [2]int32{c, i})
	}
	without, err := idempotency.NewRequest(t.Context(), "a", "/m", wrapperspb.String("x"))
	require.NoError(t, err)
	require.False(t, without.Keyed())
}

func TestRefusalsHaveStableCodesAndStatuses(t *testing.T) {
	t.Parallel()
	reused := idempotency.WireError(fmt.Errorf("x: %w", idempotency.ErrReused))
	require.Equal(t, http.StatusUnprocessableEntity, reused.HTTPStatus())
	require.Equal(t, "IDEMPOTENCY_KEY_REUSED", reused.Reason)
	inUse := idempotency.WireError(fmt.Errorf("x: %w", idempotency.ErrInUse))
	require.Equal(t, http.StatusConflict, inUse.HTTPStatus())
	require.Equal(t, "IDEMPOTENCY_KEY_IN_USE", inUse.Reason)
	require.Positive(t, inUse.RetryAfter)
	require.Nil(t, idempotency.WireError(errors.New("another")))
}

// memory is a Keeper of one answer.
type memory struct{ answer []byte }

func (m *memory) Once(_ context.Context, _ idempotency.Request, do func(string) ([]byte, error)) ([]byte, bool, error) {
	if m.answer != nil {
		return m.answer, true, nil
	}
	var err error
	m.answer, err = do("kept")
	return m.answer, false, err
}

// header is the server's side of a call, as far as headers go.
type header struct{ md metadata.MD }

func (*header) Method() string                   { return "/m" }
func (h *header) SetHeader(md metadata.MD) error { h.md = metadata.Join(h.md, md); return nil }
func (*header) SendHeader(metadata.MD) error     { return nil }
func (*header) SetTrailer(metadata.MD) error     { return nil }

func TestDoRunsOnceUnderAKeyAndEachTimeWithoutOne(t *testing.T) {
	t.Parallel()
	var runs []string
	keeper := &memory{}
	ask := func(key string) (string, bool, metadata.MD) {
		h := &header{}
		ctx := grpc.NewContextWithServerTransportStream(t.Context(), h)
		resp, replayed, err := idempotency.Do(ctx, keeper, "plain", idempotency.Request{Key: key}, &wrapperspb.StringValue{},
			func(s string) (*wrapperspb.StringValue, error) {
				runs = append(runs, s)
				return wrapperspb.String(fmt.Sprint("answer ", len(runs))), nil
			})
		require.NoError(t, err)
		return resp.GetValue(), replayed, h.md
	}

	for i := range 3 {
		answer, replayed, md := ask("k")
		require.Equal(t, "answer 1", answer)
		require.Equal(t, i > 0, replayed)
		require.Equal(t, i > 0, idempotency.Replayed(md))
	}
	answer, replayed, _ := ask("")
	require.Equal(t, "answer 2", answer)
	require.False(t, replayed)
	require.Equal(t, []string{"kept", "plain"}, runs)
}

func TestDoKeepsNothingOfAFailure(t *testing.T) {
	t.Parallel()
	keeper := &memory{}
	failure := errors.New("no")
	_, _, err := idempotency.Do(t.Context(), keeper, "", idempotency.Request{Key: "k"}, &wrapperspb.StringValue{},
		func(string) (*wrapperspb.StringValue, error) { return nil, failure })
	require.ErrorIs(t, err, failure)
	require.Nil(t, keeper.answer)
}

func ExampleCheck() {
	key, err := idempotency.Check([]string{"import-42"})
	fmt.Println(key, err)
	// Output: import-42 <nil>
}
