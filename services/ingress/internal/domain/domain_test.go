package domain_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/tenant"
	"postrider.dev/services/ingress/internal/domain"
)

func TestANewKeyIsReadBackAndHardToGuess(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for range 100 {
		key, text, err := domain.NewKey(domain.Random())
		require.NoError(t, err)
		require.Regexp(t, `^prk_[0-9A-Za-z]{12}_[0-9A-Za-z]{32}$`, text)
		parsed, err := domain.ParseKey(text)
		require.NoError(t, err)
		require.Equal(t, key, parsed)
		require.True(t, parsed.Matches(key.Hash()))
		require.False(t, seen[text])
		seen[text] = true
	}
	_, _, err := domain.NewKey(bytes.NewReader(make([]byte, 10)))
	require.Error(t, err, "a source that ends gives no key")
}

func TestWhatIsNoKeyIsRefused(t *testing.T) {
	t.Parallel()
	secret := strings.Repeat("s", 22)
	for _, text := range []string{
		"", "prk_", "prk__" + secret, "prk_id", "prk_id_", "prk_id_" + secret[1:], "PRK_id_" + secret, "prk_i d_" + secret, "prk_id_" + secret + "_x",
		"prk_id_" + secret + "é", "prk_id_" + secret + "\n", "prk_id_" + strings.Repeat("s", 300), "xprk_id_" + secret,
	} {
		_, err := domain.ParseKey(text)
		require.ErrorIs(t, err, domain.ErrMalformedKey, text)
		require.False(t, text != "" && strings.Contains(err.Error(), secret), "the error must not repeat the secret")
	}
}

func FuzzParseKey(f *testing.F) {
	f.Add("prk_id_0123456789ABCDEFGHIJKLMNOP")
	f.Add("prk_a_b_c")
	f.Fuzz(func(t *testing.T, text string) {
		key, err := domain.ParseKey(text)
		if err != nil {
			require.ErrorIs(t, err, domain.ErrMalformedKey)
			return
		}
		require.True(t, strings.HasPrefix(text, "prk_"+string(key.ID)+"_"))
		other, err := domain.ParseKey(text + "0")
		require.True(t, err != nil || !other.Matches(key.Hash()))
	})
}

func TestAdmissionFollowsRoleAndTenant(t *testing.T) {
	t.Parallel()
	admin := domain.Policy{Role: tenant.Admin, DefaultTenant: true}
	require.Equal(t, domain.RoleTooLow, admin.Admit(tenant.Caller{Tenant: "default", Role: tenant.Write}))
	require.Equal(t, domain.RoleTooLow, admin.Admit(tenant.Caller{Tenant: "default"}))
	require.Equal(t, domain.OtherTenant, admin.Admit(tenant.Caller{Tenant: "acme", Role: tenant.Admin}))
	require.Equal(t, domain.Admitted, admin.Admit(tenant.Caller{Tenant: "default", Role: tenant.Admin}))
	require.Equal(t, domain.RoleTooLow, domain.Policy{Role: tenant.Read}.Admit(tenant.Caller{Tenant: "default"}), "no role allows nothing")
}

func TestJSONIsKnownByItsMediaType(t *testing.T) {
	t.Parallel()
	for ct, want := range map[string]bool{
		"application/json": true, "Application/JSON; charset=utf-8": true, "application/vnd.api+json": true, "text/json-ish": false, "": false, "application/jsonx": false,
	} {
		require.Equal(t, want, domain.IsJSON(ct), ct)
	}
}
