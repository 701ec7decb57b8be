package server

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"

	"postrider.dev/pkg/apierr"
	"postrider.dev/pkg/idempotency"
	"postrider.dev/pkg/tenant"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/engine"
	"postrider.dev/services/dispatcher/internal/store"
)

// transactor is an engine that answers as told.
type transactor struct {
	tenants []tenant.ID
	keys    []string
	err     error
}

func (x *transactor) Transact(_ context.Context, t tenant.ID, key string, req *queuev1.TransactRequest) (*queuev1.TransactResponse, bool, error) {
	x.tenants, x.keys = append(x.tenants, t), append(x.keys, key)
	return &queuev1.TransactResponse{Results: make([]*queuev1.TransactResult, len(req.GetOperations()))}, false, x.err
}

func pushOf(items ...*queuev1.PushItem) *queuev1.TransactOperation {
	return &queuev1.TransactOperation{Push: &queuev1.PushRequest{Queue: "q", Items: items}}
}

func ackOf(settlements ...*queuev1.Settlement) *queuev1.TransactOperation {
	return &queuev1.TransactOperation{Ack: &queuev1.AckRequest{Queue: "q", Lease: "l", Settlements: settlements}}
}

func TestATransactionIsTheCallersUnderItsKeyOrOneOfItsOwn(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	req := &queuev1.TransactRequest{Operations: []*queuev1.TransactOperation{pushOf(&queuev1.PushItem{})}}
	for range 2 {
		_, err := b.Transact(b.as("a"), req)
		require.NoError(t, err)
	}
	_, err := b.Transact(metadata.NewIncomingContext(b.as("b"), metadata.Pairs(idempotency.Metadata, "k")), req)
	require.NoError(t, err)

	require.Equal(t, []tenant.ID{"a", "a", "b"}, b.transactor.tenants)
	require.NotEmpty(t, b.transactor.keys[0])
	require.NotEqual(t, b.transactor.keys[0], b.transactor.keys[1])
	require.Equal(t, "k", b.transactor.keys[2])
	_, err = b.Transact(t.Context(), req)
	refused(t, err, codes.Unauthenticated, "UNAUTHENTICATED")
}

func TestEveryFieldOfATransactionIsCheckedBeforeAnythingIsDone(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	with := func(change func(*queuev1.TransactOperation)) *queuev1.TransactOperation {
		op := pushOf(&queuev1.PushItem{})
		change(op)
		return op
	}
	many := func(n int) []*queuev1.PushItem { return make([]*queuev1.PushItem, n) }
	for name, c := range map[string]struct {
		ops         []*queuev1.TransactOperation
		code, field string
	}{
		"none":        {nil, "OUT_OF_RANGE", "operations"},
		"too many":    {make([]*queuev1.TransactOperation, 101), "OUT_OF_RANGE", "operations"},
		"neither":     {[]*queuev1.TransactOperation{{}}, "OUT_OF_RANGE", "operations[0]"},
		"both":        {[]*queuev1.TransactOperation{with(func(op *queuev1.TransactOperation) { op.Ack = &queuev1.AckRequest{} })}, "OUT_OF_RANGE", "operations[0]"},
		"no queue":    {[]*queuev1.TransactOperation{with(func(op *queuev1.TransactOperation) { op.Push.Queue = "" })}, "NAME_EMPTY", "operations[0].push.queue"},
		"no items":    {[]*queuev1.TransactOperation{pushOf()}, "OUT_OF_RANGE", "operations[0].push.items"},
		"key":         {[]*queuev1.TransactOperation{with(func(op *queuev1.TransactOperation) { op.Push.IdempotencyKey = "k" })}, "OUT_OF_RANGE", "operations[0].push.idempotency_key"},
		"resent":      {[]*queuev1.TransactOperation{with(func(op *queuev1.TransactOperation) { op.Push.Resent = true })}, "OUT_OF_RANGE", "operations[0].push.resent"},
		"many items":  {[]*queuev1.TransactOperation{pushOf(many(600)...), pushOf(many(401)...)}, "OUT_OF_RANGE", "operations"},
		"bytes":       {[]*queuev1.TransactOperation{pushOf(&queuev1.PushItem{Payload: make([]byte, 17<<20)}), pushOf(&queuev1.PushItem{Payload: make([]byte, 16<<20)})}, "MESSAGE_TOO_LARGE", "operations"},
		"nothing":     {[]*queuev1.TransactOperation{ackOf()}, "OUT_OF_RANGE", "operations[0].ack.settlements"},
		"no lease":    {[]*queuev1.TransactOperation{pushOf(&queuev1.PushItem{}), {Ack: &queuev1.AckRequest{Queue: "q"}}}, "NAME_EMPTY", "operations[1].ack.lease"},
		"rest":        {[]*queuev1.TransactOperation{{Ack: &queuev1.AckRequest{Queue: "q", Lease: "l", AckRest: true}}}, "OUT_OF_RANGE", "operations[0].ack.ack_rest"},
		"ack's delay": {[]*queuev1.TransactOperation{ackOf(&queuev1.Settlement{MessageId: "m", Delay: durationpb.New(time.Second)})}, "OUT_OF_RANGE", "operations[0].ack.settlements[0].delay"},
		"no message":  {[]*queuev1.TransactOperation{ackOf(&queuev1.Settlement{})}, "NAME_EMPTY", "operations[0].ack.settlements[0].message_id"},
	} {
		_, err := b.Transact(b.as("a"), &queuev1.TransactRequest{Operations: c.ops})
		e := apierr.From(err)
		require.NotNil(t, e, name)
		require.Equal(t, codes.InvalidArgument, e.Code, name)
		require.Equal(t, c.code, e.Reason, name)
		require.Equal(t, c.field, e.Field, name)
	}
	require.Empty(t, b.transactor.keys)
}

func TestARefusedTransactionFailsWithTheCodeThatTryingAgainDoesNotMend(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	full := &engine.QueueFullError{Option: "max_queue_bytes", Limit: 1, RetryAfter: time.Second}
	faults := map[int]*engine.Fault{
		0: {Field: "operations[0].push.queue", Err: full},
		2: {Field: "operations[2].ack.lease", Err: engine.ErrStaleEpoch},
		3: {Field: "operations[3].push.items[0].payload", Item: &queuev1.ItemError{Code: "MESSAGE_TOO_LARGE", Message: "m"}},
	}
	ops := []*queuev1.TransactOperation{pushOf(&queuev1.PushItem{}), pushOf(&queuev1.PushItem{}), ackOf(&queuev1.Settlement{MessageId: "m"}), pushOf(&queuev1.PushItem{})}
	b.transactor.err = &engine.RefusedError{Operations: 4, Faults: faults}

	_, err := b.Transact(b.as("a"), &queuev1.TransactRequest{Operations: ops})
	e := apierr.From(err)

	require.Equal(t, codes.Aborted, e.Code)
	require.Equal(t, "STALE_EPOCH", e.Reason)
	require.Equal(t, "operations[2].ack.lease", e.Field)
	require.Contains(t, e.Message, "operation 2 is refused")
	results, ok := e.Details()[0].(*queuev1.TransactResponse)
	require.True(t, ok)
	var codesOf []string
	for _, r := range results.GetResults() {
		codesOf = append(codesOf, strings.TrimPrefix(r.GetStatus().String(), "TRANSACT_STATUS_")+" "+r.GetError().GetCode())
	}
	require.Equal(t, []string{"REFUSED QUEUE_FULL", "NOT_DONE ", "REFUSED STALE_EPOCH", "REFUSED MESSAGE_TOO_LARGE"}, codesOf)
	over := apierr.FromStatus(e.GRPCStatus())
	require.Len(t, over.Details(), 1, "it travels")

	b.transactor.err = &engine.RefusedError{Operations: 4, Faults: map[int]*engine.Fault{0: faults[0]}}
	_, err = b.Transact(b.as("a"), &queuev1.TransactRequest{Operations: ops})
	refused(t, err, codes.ResourceExhausted, "QUEUE_FULL")
	require.Equal(t, time.Second, apierr.From(err).RetryAfter)
}

func TestWhatATransactionIsToldSaysWhetherItMayBeRepeated(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for err, want := range map[error]struct {
		code   codes.Code
		reason string
	}{
		&engine.TransactUnknownError{Err: errors.New("away")}: {codes.DeadlineExceeded, "OUTCOME_UNKNOWN"},
		&engine.UnavailableError{Err: errors.New("away")}:     {codes.Unavailable, "DATABASE_UNAVAILABLE"},
		engine.ErrMaintenance:                                 {codes.Unavailable, "MAINTENANCE"},
		engine.ErrWouldBeBuffered:                             {codes.Unavailable, "WOULD_BE_BUFFERED"},
		idempotency.ErrReused:                                 {codes.FailedPrecondition, "IDEMPOTENCY_KEY_REUSED"},
		idempotency.ErrInUse:                                  {codes.Aborted, "IDEMPOTENCY_KEY_IN_USE"},
		store.ErrKeyMissing:                                   {codes.Unavailable, "ENCRYPTION_KEY_MISSING"},
	} {
		b.transactor.err = err
		_, got := b.Transact(b.as("a"), &queuev1.TransactRequest{Operations: []*queuev1.TransactOperation{pushOf(&queuev1.PushItem{})}})
		refused(t, got, want.code, want.reason)
	}
}
