package localpg_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/localpg"
)

// repository serves one build, made of the machine's own programs, for whatever version and system is asked.
type repository struct {
	jar      []byte
	checksum string // "" is none
	asked    chan string
}

func (r *repository) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.asked <- req.URL.Path
	switch {
	case strings.HasSuffix(req.URL.Path, ".sha256") && r.checksum != "":
		_, _ = w.Write([]byte(r.checksum))
	case strings.HasSuffix(req.URL.Path, ".jar"):
		_, _ = w.Write(r.jar)
	default:
		http.NotFound(w, req)
	}
}

// builtJar is made once for all tests: it is large.
var builtJar = sync.OnceValues(buildJar) //nolint:gochecknoglobals // one build a test process

func newRepository(t *testing.T) (*repository, string) {
	t.Helper()
	jar, err := builtJar()
	require.NoError(t, err)
	sum := sha256.Sum256(jar)
	r := &repository{jar: jar, checksum: hex.EncodeToString(sum[:]), asked: make(chan string, 100)}
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	return r, server.URL
}

// buildJar packs the machine's programs, compressing nothing.
func buildJar() ([]byte, error) {
	bin, err := localpg.Find(context.Background())
	if err != nil {
		return nil, err
	}
	var tarball bytes.Buffer
	archive := tar.NewWriter(&tarball)
	var errs []error
	for _, program := range []string{"postgres", "initdb", "pg_ctl"} {
		errs = append(errs, pack(archive, bin.Path(program), "bin/"+program))
	}
	// Where the libraries and templates lie beside the programs, the build finds its own.
	base := filepath.Dir(bin.Dir)
	for _, pattern := range []string{"lib/*.so", "lib/postgresql/*.so", "lib/postgresql/*.dylib", "share/*", "share/*/*", "share/*/*/*"} {
		files, err := filepath.Glob(filepath.Join(base, pattern))
		errs = append(errs, err)
		for _, file := range files {
			errs = append(errs, pack(archive, file, strings.TrimPrefix(file, base+"/")))
		}
	}
	errs = append(errs, archive.Close())
	var jar bytes.Buffer
	z := zip.NewWriter(&jar)
	txz, err := z.CreateHeader(&zip.FileHeader{Name: "postgres.txz", Method: zip.Store})
	if err := errors.Join(append(errs, err)...); err != nil {
		return nil, err
	}
	if _, err := txz.Write(storeXZ(tarball.Bytes())); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return jar.Bytes(), nil
}

// pack adds a regular file to the archive, and nothing else.
func pack(archive *tar.Writer, path, name string) error {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() || strings.Contains(name, "llvm") {
		return err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := archive.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(data))}); err != nil {
		return err
	}
	_, err = archive.Write(data)
	return err
}

// storeXZ wraps data into the .xz format without compressing it, so that the test needs no xz program.
func storeXZ(data []byte) []byte {
	crc := func(b []byte) []byte { return binary.LittleEndian.AppendUint32(nil, crc32.ChecksumIEEE(b)) }
	pad := func(b []byte) []byte { return append(b, make([]byte, (4-len(b)%4)%4)...) }
	flags := []byte{0, 0} // no check
	out := append([]byte{0xfd, '7', 'z', 'X', 'Z', 0}, append(flags, crc(flags)...)...)

	header := []byte{2, 0, 0x21, 1, 0x16, 0, 0, 0} // size 12, one filter: LZMA2 with a dictionary of 8 MiB
	block := append(header, crc(header)...)
	for first, rest := true, data; len(rest) > 0; first = false {
		n := min(len(rest), 1<<16)
		control := byte(2) // stored chunk
		if first {
			control = 1 // and a new dictionary
		}
		block = append(block, control, byte((n-1)>>8), byte(n-1))
		block = append(block, rest[:n]...)
		rest = rest[n:]
	}
	block = append(block, 0)
	index := binary.AppendUvarint([]byte{0, 1}, uint64(len(block)))
	index = pad(binary.AppendUvarint(index, uint64(len(data))))
	index = append(index, crc(index)...)

	footer := append(binary.LittleEndian.AppendUint32(nil, uint32(len(index)/4-1)), flags...) // small
	out = append(append(out, pad(block)...), index...)
	return append(append(append(out, crc(footer)...), footer...), 'Y', 'Z')
}

func TestDownloadedProgramsRunAServer(t *testing.T) {
	t.Parallel()
	repo, url := newRepository(t)
	dir := tempDir(t)

	bin, err := localpg.Download(t.Context(), url, dir)
	require.NoError(t, err)
	require.Equal(t, filepath.Join(dir, "bin"), bin.Dir)
	server := start(t, localpg.Options{Binaries: bin})
	require.Equal(t, 1, query[int](t, server.DSN("postgres"), "SELECT 1"))

	asked := len(repo.asked)
	again, err := localpg.Download(t.Context(), url, dir)
	require.NoError(t, err)
	require.Equal(t, bin, again)
	require.Len(t, repo.asked, asked, "what is there is not fetched again")
}

func TestDownloadWithAWrongChecksumIsRefused(t *testing.T) {
	t.Parallel()
	repo, url := newRepository(t)
	repo.checksum = strings.Repeat("0", 64)

	_, err := localpg.Download(t.Context(), url, tempDir(t))

	require.Error(t, err)
}

func TestDownloadWithoutAChecksumIsRefused(t *testing.T) {
	t.Parallel()
	repo, url := newRepository(t)
	repo.checksum = ""

	_, err := localpg.Download(t.Context(), url, tempDir(t))

	require.ErrorIs(t, err, localpg.ErrUnverified)
}

func TestDownloadEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	release := make(chan struct{})
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, _ *http.Request) {
		cancel()
		<-release
	}))
	t.Cleanup(silent.Close)
	t.Cleanup(func() { close(release) })

	_, err := localpg.Download(ctx, silent.URL, tempDir(t))

	require.ErrorIs(t, err, context.Canceled)
}
