// Package idempotency is what services share to do a request once: how its key travels, what it covers, and the errors about it.
//
// A client sends a key in the header Idempotency-Key, or in the gRPC metadata of the same name. Who owns the effect keeps (tenant, method, key, hash of
// the body, answer) in the effect's own transaction, for Window on its database's clock. It holds:
//
//   - the same key with the same body answers what the first one answered, marked by the header Idempotency-Replayed, and does nothing;
//   - with another body it is refused (ErrReused), and while the first still runs it is refused too (ErrInUse): nobody waits for anybody;
//   - a request that failed did nothing and is not remembered.
//
// The package has no SQL: a Keeper is the owner's.
package idempotency

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"postrider.dev/pkg/apierr"
	"postrider.dev/pkg/tenant"
)

// Names of the headers. As gRPC metadata they are the same in lower case.
const (
	Header           = "Idempotency-Key"
	ReplayedHeader   = "Idempotency-Replayed"
	Metadata         = "idempotency-key"
	ReplayedMetadata = "idempotency-replayed"
)

const (
	// MaxKeyBytes is the length of the longest key.
	MaxKeyBytes = 255
	// Window is how long an answer is remembered.
	Window = 24 * time.Hour
)

// Reasons on the wire.
const (
	ReasonReused    = "IDEMPOTENCY_KEY_REUSED"
	ReasonInUse     = "IDEMPOTENCY_KEY_IN_USE"
	ReasonEmpty     = "NAME_EMPTY"
	ReasonTooLong   = "NAME_TOO_LONG"
	ReasonMalformed = "TOKEN_MALFORMED"
	ReasonAmbiguous = "CONFLICTING_FIELDS"
)

const (
	field      = "idempotency_key"
	retryInUse = time.Second
)

// What a Keeper refuses with.
var (
	ErrReused = errors.New("the idempotency key was used for another request")
	ErrInUse  = errors.New("a request with the idempotency key is still running")
)

// Request names what is to be done once. Without a Key it is done each time it is asked for.
type Request struct {
	Tenant tenant.ID
	Method string // full name of the RPC
	Key    string
	Body   [sha256.Size]byte // hash of the request's message, path parameters included
}

// Keyed reports whether the request has a key.
func (r Request) Keyed() bool { return r.Key != "" }

// Lock returns the two numbers of the advisory lock that stands for "still running". They are in PostgreSQL's space of two numbers, apart from the locks of
// one number that leaders and migrations take. Two requests that share them by chance (one in 2^64) only refuse each other for a moment.
func (r Request) Lock() (class, id int32) {
	sum := sha256.Sum256([]byte(string(r.Tenant) + "\x00" + r.Method + "\x00" + r.Key)) // NUL is in none of the first two
	return int32(binary.BigEndian.Uint32(sum[0:])), int32(binary.BigEndian.Uint32(sum[4:]))
}

// Check returns the one key among the values that were sent, "" if none was: 1 to MaxKeyBytes of printable ASCII.
func Check(sent []string) (string, error) {
	switch {
	case len(sent) == 0:
		return "", nil
	case len(sent) > 1:
		return "", apierr.InvalidArgument(ReasonAmbiguous, field, "more than one idempotency key was sent")
	}
	key := sent[0]
	switch {
	case key == "":
		return "", apierr.InvalidArgument(ReasonEmpty, field, "the idempotency key is empty")
	case len(key) > MaxKeyBytes:
		return "", apierr.InvalidArgument(ReasonTooLong, field,
			fmt.Sprintf("the idempotency key has %d bytes, at most %d are allowed", len(key), MaxKeyBytes)).With("size", len(key)).With("limit", MaxKeyBytes)
	}
	for i := range len(key) {
		if key[i] < ' ' || key[i] > '~' {
			return "", apierr.InvalidArgument(ReasonMalformed, field, "the idempotency key holds something other than printable ASCII")
		}
	}
	return key, nil
}

// Key returns the key that came with the gRPC call of ctx, "" if none came.
func Key(ctx context.Context) (string, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	return Check(md.Get(Metadata))
}

// NewRequest returns the gRPC call of ctx as a Request, with its key if one came.
func NewRequest(ctx context.Context, t tenant.ID, method string, body proto.Message) (Request, error) {
	key, err := Key(ctx)
	if err != nil || key == "" {
		return Request{}, err
	}
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(body)
	if err != nil {
		return Request{}, fmt.Errorf("encode %s: %w", method, err)
	}
	return Request{Tenant: t, Method: method, Key: key, Body: sha256.Sum256(text)}, nil
}

// Replayed reports whether the header metadata of an answer says that it is the first one's again.
func Replayed(header metadata.MD) bool { return len(header.Get(ReplayedMetadata)) > 0 }

// MarkReplayed makes the answer of the gRPC call of ctx say that it is the first one's again.
func MarkReplayed(ctx context.Context) error {
	if err := grpc.SetHeader(ctx, metadata.Pairs(ReplayedMetadata, "true")); err != nil {
		return fmt.Errorf("mark answer as replayed: %w", err)
	}
	return nil
}

// WireError returns what a client is told of ErrReused and ErrInUse; nil if err is neither.
func WireError(err error) *apierr.Error {
	switch {
	case errors.Is(err, ErrReused):
		return apierr.Unprocessable(ReasonReused, field, "the idempotency key was used for another request").WithCause(err)
	case errors.Is(err, ErrInUse):
		return apierr.Aborted(ReasonInUse, "a request with this idempotency key is still running; nothing was done").
			WithField(field).WithRetryAfter(retryInUse).WithCause(err)
	}
	return nil
}

// Keeper remembers answers. S is what does the work.
type Keeper[S any] interface {
	// Once runs do and keeps its answer in one transaction, or returns the answer kept before, replayed. do works through the S it is given, in that
	// transaction, and MAY run more than once. An error of do is returned, and then nothing happened and nothing is kept.
	Once(ctx context.Context, req Request, do func(S) ([]byte, error)) (answer []byte, replayed bool, err error)
}

// Do runs do once for the request: through keeper if it has a key, else on plain. When it replays, it fills empty, marks the answer of the gRPC call and
// says so; then do did not run.
func Do[S any, R proto.Message](
	ctx context.Context, keeper Keeper[S], plain S, req Request, empty R, do func(S) (R, error),
) (resp R, replayed bool, err error) {
	if !req.Keyed() {
		resp, err = do(plain)
		return resp, false, err
	}
	answer, replayed, err := keeper.Once(ctx, req, func(s S) ([]byte, error) {
		var err error
		if resp, err = do(s); err != nil {
			return nil, err
		}
		return proto.Marshal(resp)
	})
	if err != nil || !replayed {
		return resp, false, err
	}
	if err := proto.Unmarshal(answer, empty); err != nil {
		return empty, true, fmt.Errorf("read the first answer: %w", err)
	}
	return empty, true, MarkReplayed(ctx)
}
