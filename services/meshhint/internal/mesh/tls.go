package mesh

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"
)

// TLS is what the sidecars of a fleet prove themselves to one another with: each its certificate, all by one authority. The files are looked at before each
// handshake and read again when they changed; files that cannot be used are reported, and the last good ones stay.
type TLS struct {
	certFile, keyFile, caFile string
	serverName                string
	log                       *zap.Logger

	mu      sync.Mutex // guards all below
	version version
	pair    *tls.Certificate
	pool    *x509.CertPool
}

// version tells two contents of the files apart.
type version [3]struct {
	at   time.Time
	size int64
}

// NewTLS reads the files. serverName is the name that the certificates of all sidecars carry; empty: each carries the name it is dialled by.
func NewTLS(certFile, keyFile, caFile, serverName string, log *zap.Logger) (*TLS, error) {
	t := &TLS{certFile: certFile, keyFile: keyFile, caFile: caFile, serverName: serverName, log: log}
	v, err := t.look()
	if err != nil {
		return nil, err
	}
	if t.pair, t.pool, err = t.read(); err != nil {
		return nil, err
	}
	t.version = v
	return t, nil
}

func (t *TLS) look() (v version, err error) {
	for i, name := range []string{t.certFile, t.keyFile, t.caFile} {
		info, err := os.Stat(name)
		if err != nil {
			return v, fmt.Errorf("mesh TLS: %w", err)
		}
		v[i].at, v[i].size = info.ModTime(), info.Size()
	}
	return v, nil
}

func (t *TLS) read() (*tls.Certificate, *x509.CertPool, error) {
	pair, err := tls.LoadX509KeyPair(t.certFile, t.keyFile)
	if err != nil {
		return nil, nil, fmt.Errorf("mesh TLS: %w", err)
	}
	pem, err := os.ReadFile(t.caFile)
	if err != nil {
		return nil, nil, fmt.Errorf("mesh TLS: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, nil, fmt.Errorf("mesh TLS: %s has no certificate", t.caFile)
	}
	return &pair, pool, nil
}

// current returns what the files hold, or held when they could be used last.
func (t *TLS) current() (*tls.Certificate, *x509.CertPool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	v, err := t.look()
	if err == nil && v == t.version {
		return t.pair, t.pool
	}
	if err == nil {
		var pair *tls.Certificate
		var pool *x509.CertPool
		if pair, pool, err = t.read(); err == nil {
			t.pair, t.pool, t.version = pair, pool, v
			t.log.Info("mesh certificates read again")
			return pair, pool
		}
	}
	t.log.Warn("mesh certificates cannot be used, the last good ones stay", zap.Error(err))
	return t.pair, t.pool
}

// Server returns what connections are accepted with.
func (t *TLS) Server() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			pair, pool := t.current()
			return &tls.Config{
				MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{*pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool,
			}, nil
		},
	}
}

// Client returns what host is dialled with.
func (t *TLS) Client(host string) *tls.Config {
	pair, pool := t.current()
	name := t.serverName
	if name == "" {
		name = host
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{*pair}, RootCAs: pool, ServerName: name}
}

// CheckFiles reports whether all files are named or none.
func CheckFiles(cert, key, ca string) error {
	if (cert == "") == (key == "") && (cert == "") == (ca == "") {
		return nil
	}
	return errors.New("MESH_TLS_CERT, MESH_TLS_KEY and MESH_TLS_CA: all three or none must be set")
}
