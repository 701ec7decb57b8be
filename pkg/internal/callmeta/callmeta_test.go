package callmeta_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"
	"pgregory.net/rapid"

	"postrider.dev/pkg/internal/callmeta"
	"postrider.dev/pkg/tenant"
)

func TestCallersTravel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want := tenant.Caller{
			Tenant: tenant.ID(rapid.StringMatching(`[a-z0-9][a-z0-9_-]{0,62}`).Draw(t, "tenant")),
			Actor:  rapid.StringN(0, 100, 300).Draw(t, "actor"),
			Role:   tenant.Role(rapid.IntRange(0, 3).Draw(t, "role")),
		}
		md := metadata.MD{}
		callmeta.Put(md, want)
		for _, values := range md {
			require.Regexp(t, `^[ -~]*$`, values[0], "metadata holds printable ASCII only")
		}
		got, ok, err := callmeta.Caller(md)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, want, got)
	})
}

func TestBadMetadataIsRefused(t *testing.T) {
	t.Parallel()
	_, ok, err := callmeta.Caller(metadata.Pairs("other", "x", callmeta.Role, "admin"))
	require.NoError(t, err)
	require.False(t, ok, "without a tenant there is no caller")

	for _, kv := range [][]string{
		{callmeta.Tenant, "Not Valid"},
		{callmeta.Tenant, "a", callmeta.Tenant, "b"},
		{callmeta.Tenant, "a", callmeta.Actor, "x", callmeta.Actor, "y"},
		{callmeta.Tenant, "a", callmeta.Actor, "%zz"},
		{callmeta.Tenant, "a", callmeta.Actor, strings.Repeat("x", 5000)},
		{callmeta.Tenant, "a", callmeta.Role, "root"},
		{callmeta.Tenant, "a", callmeta.Role, "read", callmeta.Role, "admin"},
	} {
		_, ok, err := callmeta.Caller(metadata.Pairs(kv...))
		require.Error(t, err, kv)
		require.False(t, ok)
	}
}

func TestStripRemovesOurKeysAlone(t *testing.T) {
	t.Parallel()
	md := metadata.Pairs(callmeta.Secret, "s", callmeta.Tenant, "a", "Postrider-Anything", "x", "traceparent", "t")
	require.Equal(t, metadata.Pairs("traceparent", "t"), callmeta.Strip(md))
	require.Len(t, md, 4, "the original is not touched")
	require.Empty(t, callmeta.Strip(nil))
}

func TestVerifier(t *testing.T) {
	t.Parallel()
	v := callmeta.NewVerifier("0123456789abcdef")
	require.True(t, v.MatchMD(metadata.Pairs(callmeta.Secret, "0123456789abcdef")))
	require.False(t, v.MatchMD(metadata.Pairs(callmeta.Secret, "0123456789abcdeF")))
	require.False(t, v.MatchMD(metadata.Pairs(callmeta.Secret, "")))
	require.False(t, v.MatchMD(nil))
	require.False(t, v.MatchMD(metadata.Pairs(callmeta.Secret, "wrong", callmeta.Secret, "0123456789abcdef")), "one secret, not a list of guesses")
}

func TestCarrier(t *testing.T) {
	t.Parallel()
	c := callmeta.Carrier{}
	require.Empty(t, c.Get("traceparent"))
	c.Set("Traceparent", "00-1")
	require.Equal(t, "00-1", c.Get("traceparent"))
	require.Equal(t, []string{"traceparent"}, c.Keys())
}

func FuzzCaller(f *testing.F) {
	f.Add("default", "key%3Aci", "admin")
	f.Add("", "", "")
	f.Add("a\x00", "%", "ADMIN")
	f.Fuzz(func(t *testing.T, id, actor, role string) {
		c, ok, err := callmeta.Caller(metadata.Pairs(callmeta.Tenant, id, callmeta.Actor, actor, callmeta.Role, role))
		if err == nil {
			require.True(t, ok)
			require.True(t, c.Tenant.Valid())
			require.LessOrEqual(t, c.Role, tenant.Admin)
		}
	})
}
