package mesh_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"postrider.dev/services/meshhint/internal/mesh"
)

// authority signs certificates of a test.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return &authority{cert: cert, key: key, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

// files are the certificate, the key and the authority of a sidecar, in a folder.
type files struct{ cert, key, ca string }

// issue writes the files of a sidecar that is called name.
func (a *authority) issue(t *testing.T, dir, name string) files {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), DNSNames: []string{name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	require.NoError(t, err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	f := files{cert: filepath.Join(dir, "cert.pem"), key: filepath.Join(dir, "key.pem"), ca: filepath.Join(dir, "ca.pem")}
	for path, content := range map[string][]byte{
		f.cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), f.key: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), f.ca: a.pem,
	} {
		require.NoError(t, os.WriteFile(path, content, 0o600))
	}
	return f
}

func (f files) open(t *testing.T, serverName string) *mesh.TLS {
	t.Helper()
	out, err := mesh.NewTLS(f.cert, f.key, f.ca, serverName, zap.NewNop())
	require.NoError(t, err)
	return out
}

func TestOverTLSBothSidesShowACertificateOfTheAuthority(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	for name, withSecret := range map[string]bool{"with a secret": true, "without": false} {
		cfg := settings("to")
		cfg.TLS = ca.issue(t, t.TempDir(), "sidecar").open(t, "")
		if !withSecret {
			cfg.Secret = nil
		}
		to := start(t, cfg)
		cfg2 := dialling(t, "from", to)
		cfg2.Secret, cfg2.TLS = cfg.Secret, ca.issue(t, t.TempDir(), "sidecar").open(t, "sidecar")
		from := start(t, cfg2)
		from.awaitConnected(t, 1)
		reaches(t, from, to, name)
		require.True(t, to.Stats().TLS)
	}
}

func TestOverTLSWhoHasNoGoodCertificateIsRefused(t *testing.T) {
	t.Parallel()
	ca, other := newAuthority(t), newAuthority(t)
	cfg := settings("to")
	cfg.TLS = ca.issue(t, t.TempDir(), "sidecar").open(t, "")
	to := start(t, cfg)

	strangers := map[string]*mesh.TLS{
		"no TLS": nil, "another authority": other.issue(t, t.TempDir(), "sidecar").open(t, "sidecar"), "another name": ca.issue(t, t.TempDir(), "x").open(t, "elsewhere"),
	}
	for name, theirs := range strangers {
		cfg := dialling(t, "stranger", to)
		cfg.TLS = theirs
		before := to.metric(t, "handshake_failures_total", "side=accepted")
		stranger := start(t, cfg)
		stranger.Publish(flip())
		eventually(t, name, func() bool { return to.metric(t, "handshake_failures_total", "side=accepted") > before })
		require.Zero(t, stranger.connected(), name)
		stranger.stop()
	}

	require.Empty(t, to.hints)
	require.Zero(t, to.Stats().Alive)
}

func TestChangedCertificatesAreUsedAndBadOnesAreNot(t *testing.T) {
	t.Parallel()
	ca, dir := newAuthority(t), t.TempDir()
	f := ca.issue(t, dir, "before")
	at := time.Now()
	touch := func() { // file systems may keep whole seconds only
		at = at.Add(2 * time.Second)
		for _, name := range []string{f.cert, f.key, f.ca} {
			require.NoError(t, os.Chtimes(name, at, at))
		}
	}
	pair := f.open(t, "")
	names := func() []string {
		cfg, err := pair.Server().GetConfigForClient(&tls.ClientHelloInfo{})
		require.NoError(t, err)
		cert, err := x509.ParseCertificate(cfg.Certificates[0].Certificate[0])
		require.NoError(t, err)
		require.Equal(t, cfg.Certificates[0].Certificate, pair.Client("x").Certificates[0].Certificate)
		return cert.DNSNames
	}
	require.Equal(t, []string{"before"}, names())

	require.NoError(t, os.WriteFile(f.key, []byte("half written"), 0o600))
	touch()
	require.Equal(t, []string{"before"}, names(), "the last good pair stays")
	ca.issue(t, dir, "after")
	touch()
	require.Equal(t, []string{"after"}, names())
	require.NoError(t, os.Remove(f.ca))
	require.Equal(t, []string{"after"}, names())
}

func TestFilesThatCannotBeUsedAreRefusedAtTheStart(t *testing.T) {
	t.Parallel()
	f := newAuthority(t).issue(t, t.TempDir(), "x")
	empty := filepath.Join(t.TempDir(), "empty.pem")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	for name, bad := range map[string]files{
		"no certificate": {empty, f.key, f.ca}, "no key": {f.cert, "nowhere", f.ca}, "no authority": {f.cert, f.key, empty},
	} {
		_, err := mesh.NewTLS(bad.cert, bad.key, bad.ca, "", zap.NewNop())
		require.ErrorContains(t, err, "mesh TLS", name)
	}
	require.NoError(t, mesh.CheckFiles("", "", ""))
	require.NoError(t, mesh.CheckFiles("a", "b", "c"))
	require.Error(t, mesh.CheckFiles("a", "b", ""))
}
