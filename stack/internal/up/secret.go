package up

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Secret returns the secret kept in dir/name (0600), and makes it with make the first time.
func Secret(dir, name string, create func() (string, error)) (string, error) {
	path := filepath.Join(dir, name)
	text, err := os.ReadFile(path) //nolint:gosec // the folder is the user's own choice
	if err == nil && len(strings.TrimSpace(string(text))) > 0 {
		return strings.TrimSpace(string(text)), nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	secret, err := create()
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // an unprivileged PostgreSQL below must reach its data
		return "", fmt.Errorf("data folder: %w", err)
	}
	tmp, err := os.CreateTemp(dir, name)
	if err != nil {
		return "", fmt.Errorf("write %s: %w", path, err)
	}
	defer os.Remove(tmp.Name()) //nolint:errcheck // gone already when linked
	if _, err := tmp.WriteString(secret + "\n"); err != nil {
		return "", errors.Join(fmt.Errorf("write %s: %w", path, err), tmp.Close())
	}
	if err := tmp.Close(); err != nil {
		return "", fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return "", fmt.Errorf("write %s: %w", path, err)
	}
	return secret, nil
}

// RandomSecret returns 32 random bytes as text.
func RandomSecret() (string, error) {
	return base64.RawURLEncoding.EncodeToString(randomBytes(32)), nil
}

// NewAdminKey returns an API key for the bootstrap administrator, in the form that the ingress takes: prk_ID_SECRET, in letters and digits.
func NewAdminKey() (string, error) { return "prk_admin_" + base62(32), nil }

// base62 returns n random letters and digits, each equally likely.
func base62(n int) string {
	const digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	out := make([]byte, 0, n)
	for len(out) < n {
		if b := randomBytes(1)[0]; b < 248 { // 4 * 62: the rest would favour the first digits
			out = append(out, digits[b%62])
		}
	}
	return string(out)
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return b
}
