package tenant_test

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/tenant"
)

func TestParse(t *testing.T) {
	t.Parallel()
	good := []string{"a", "0", "default", "a-b_c", "9lives", strings.Repeat("x", tenant.MaxLen)}
	for _, s := range good {
		id, err := tenant.Parse(s)
		require.NoError(t, err, s)
		require.Equal(t, s, id.String())
		require.True(t, id.Valid())
	}
	bad := []string{"", "-a", "_a", "A", "a b", "a.b", "ä", "a\x00", "a\n", "\xff", strings.Repeat("x", tenant.MaxLen+1)}
	for _, s := range bad {
		_, err := tenant.Parse(s)
		require.ErrorIs(t, err, tenant.ErrInvalid, "%q", s)
		require.False(t, tenant.ID(s).Valid())
	}
}

func FuzzParseAgreesWithThePattern(f *testing.F) {
	pattern := regexp.MustCompile(`\A[a-z0-9][a-z0-9_-]{0,62}\z`)
	for _, s := range []string{"", "default", "-", "a-", "a\n", strings.Repeat("a", 63), strings.Repeat("a", 64), "\x80"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		_, err := tenant.Parse(s)
		require.Equal(t, pattern.MatchString(s), err == nil, "%q", s)
	})
}

func TestContextCarriesTheCaller(t *testing.T) {
	t.Parallel()
	_, ok := tenant.FromContext(t.Context())
	require.False(t, ok)

	ctx := tenant.NewContext(t.Context(), tenant.Caller{Tenant: "acme", Actor: "ci", Role: tenant.Write})
	c, ok := tenant.CallerFrom(ctx)
	require.True(t, ok)
	require.Equal(t, tenant.Caller{Tenant: "acme", Actor: "ci", Role: tenant.Write}, c)
	id, ok := tenant.FromContext(ctx)
	require.True(t, ok)
	require.Equal(t, tenant.ID("acme"), id)

	_, ok = tenant.FromContext(tenant.NewContext(t.Context(), tenant.Caller{Actor: "nobody"}))
	require.False(t, ok, "a caller without a tenant is no tenant")
}

func TestRolesAreOrdered(t *testing.T) {
	t.Parallel()
	roles := []tenant.Role{tenant.Read, tenant.Write, tenant.Admin}
	for i, have := range roles {
		for j, need := range roles {
			require.Equal(t, i >= j, have.Allows(need), "%v allows %v", have, need)
		}
		require.False(t, tenant.NoRole.Allows(have))
		parsed, err := tenant.ParseRole(have.String())
		require.NoError(t, err)
		require.Equal(t, have, parsed)
	}
	require.False(t, tenant.NoRole.Allows(tenant.NoRole))
	require.False(t, tenant.Role(99).Allows(tenant.Read), "a role that is none of ours allows nothing")
	for _, s := range []string{"", "none", "Admin", "root"} {
		_, err := tenant.ParseRole(s)
		require.ErrorIs(t, err, tenant.ErrInvalidRole, s)
	}
}

func Example() {
	id, err := tenant.Parse("acme")
	if err != nil {
		panic(err)
	}
	ctx := tenant.NewContext(context.Background(), tenant.Caller{Tenant: id, Actor: "key:ci", Role: tenant.Write})

	caller, _ := tenant.CallerFrom(ctx)
	fmt.Println(caller.Tenant, caller.Role.Allows(tenant.Read), caller.Role.Allows(tenant.Admin))
	// Output: acme true false
}
