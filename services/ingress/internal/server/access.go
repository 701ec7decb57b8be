package server

import (
	"context"
	"net/http"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"postrider.dev/pkg/apierr"
	"postrider.dev/pkg/tenant"
	"postrider.dev/services/ingress/internal/domain"
)

// Keys checks API keys; keyring.Ring is one.
type Keys interface {
	Check(ctx context.Context, key domain.Key) (tenant.Caller, error)
}

// access decides who calls and whether they may, by the one policy table, for both surfaces.
type access struct {
	keys Keys // nil: authentication is off
	rpcs map[string]domain.Policy
}

func newAccess(keys Keys, policies []domain.Policy) *access {
	a := &access{keys: keys, rpcs: map[string]domain.Policy{}}
	for _, p := range policies {
		if p.RPC != "" {
			a.rpcs[p.RPC] = p
		}
	}
	return a
}

// nobody is the caller where authentication is off.
var nobody = tenant.Caller{Tenant: tenant.Default, Actor: "anonymous", Role: tenant.Admin} //nolint:gochecknoglobals // a constant

// admit authenticates by the credentials given and applies the policy. The context it returns carries the caller.
func (a *access) admit(ctx context.Context, p domain.Policy, authorization, apiKey []string) (context.Context, error) {
	if p.Role == tenant.NoRole {
		return ctx, nil
	}
	caller, err := a.identify(ctx, authorization, apiKey)
	if err != nil {
		return ctx, err
	}
	switch p.Admit(caller) {
	case domain.Admitted:
		ctx = tenant.NewContext(ctx, caller)
		return context.WithValue(ctx, againKey{}, func(ctx context.Context) error {
			_, err := a.admit(ctx, p, authorization, apiKey)
			return err
		}), nil
	case domain.RoleTooLow:
		return ctx, apierr.PermissionDenied(reasonRoleTooLow, "this needs a key with role "+p.Role.String()+" or higher").With("role", caller.Role)
	case domain.OtherTenant:
	}
	return ctx, apierr.PermissionDenied(reasonDefaultTenant, "this is for keys of tenant "+string(tenant.Default))
}

type againKey struct{}

// stillAdmitted asks once more what admitted the call of ctx. What cannot be asked now is left as it is.
func stillAdmitted(ctx context.Context) bool {
	again, ok := ctx.Value(againKey{}).(func(context.Context) error)
	if !ok {
		return true
	}
	code := apierr.Code(again(ctx))
	return code != codes.Unauthenticated && code != codes.PermissionDenied
}

func (a *access) identify(ctx context.Context, authorization, apiKey []string) (tenant.Caller, error) {
	if a.keys == nil {
		return nobody, nil
	}
	text, err := credential(authorization, apiKey)
	if err != nil {
		return tenant.Caller{}, err
	}
	key, err := domain.ParseKey(text)
	if err != nil {
		return tenant.Caller{}, apierr.Unauthenticated(reasonInvalidKey, "the API key is not valid").WithCause(err)
	}
	caller, err := a.keys.Check(ctx, key)
	return caller, wireError(err)
}

// credential returns the one key that was sent, as a bearer token or as X-API-Key.
func credential(authorization, apiKey []string) (string, error) {
	if len(authorization) > 1 || len(apiKey) > 1 {
		return "", apierr.Unauthenticated(reasonAmbiguousKey, "more than one API key was sent")
	}
	var bearer, plain string
	if len(authorization) == 1 {
		scheme, token, ok := strings.Cut(authorization[0], " ")
		if !ok || !strings.EqualFold(scheme, "Bearer") {
			return "", apierr.Unauthenticated(reasonInvalidKey, "the authorization must be a bearer token")
		}
		bearer = strings.TrimSpace(token)
	}
	if len(apiKey) == 1 {
		plain = apiKey[0]
	}
	switch {
	case bearer == "" && plain == "":
		return "", apierr.Unauthenticated(reasonMissingKey, "an API key is needed, as Authorization: Bearer or as X-API-Key")
	case bearer != "" && plain != "" && bearer != plain:
		return "", apierr.Unauthenticated(reasonAmbiguousKey, "two different API keys were sent")
	case bearer != "":
		return bearer, nil
	}
	return plain, nil
}

func (a *access) rpc(ctx context.Context, method string) (context.Context, error) {
	p, listed := a.rpcs[method]
	if !listed {
		return ctx, apierr.PermissionDenied(reasonNotListed, "this call is not part of the surface")
	}
	md, _ := metadata.FromIncomingContext(ctx)
	return a.admit(ctx, p, md.Get("authorization"), md.Get("x-api-key"))
}

// Unary applies the policy table to unary calls.
func (a *access) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	ctx, err := a.rpc(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	return handle(ctx, req)
}

// Stream applies the policy table to streams.
func (a *access) Stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	ctx, err := a.rpc(ss.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	return handle(srv, &callerStream{ServerStream: ss, ctx: ctx})
}

type callerStream struct {
	grpc.ServerStream

	ctx context.Context //nolint:containedctx // a stream is the one place where gRPC keeps a context.
}

func (s *callerStream) Context() context.Context { return s.ctx }

// route applies the policy to a REST route.
func (a *access) route(p domain.Policy, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, err := a.admit(r.Context(), p, r.Header.Values("Authorization"), r.Header.Values("X-Api-Key"))
		if err != nil {
			apierr.WriteHTTP(w, r, err)
			return
		}
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}
