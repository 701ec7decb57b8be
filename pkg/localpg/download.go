package localpg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	embedded "github.com/fergusstrange/embedded-postgres"
)

const (
	// downloadVersion is the build that is fetched.
	downloadVersion = embedded.V17
	// DefaultRepository holds the builds for every common system.
	DefaultRepository = "https://repo1.maven.org/maven2"
	// responseTimeout bounds the wait for a repository to begin its answer.
	responseTimeout = 30 * time.Second
)

// ErrUnverified says that the repository offers no checksum for a build.
var ErrUnverified = errors.New("the repository has no checksum of the build")

// Download fetches a build of PostgreSQL into dir, unless one is there, and returns its programs: the last resort where none are installed and none can be. The build's
// checksum must be offered and right. dir is replaced by a reachable one as with Options.Dir.
func Download(ctx context.Context, repositoryURL, dir string) (Binaries, error) {
	acct, err := unprivileged()
	if err != nil {
		return Binaries{}, err
	}
	if dir, err = acct.place(dir); err != nil {
		return Binaries{}, err
	}
	bin := filepath.Join(dir, "bin")
	if b, err := Inspect(ctx, bin); err == nil {
		return b, nil
	}
	relay, err := newRelay(ctx, repositoryURL)
	if err != nil {
		return Binaries{}, err
	}
	err = errors.Join(fetch(ctx, relay.url(), dir), relay.close(ctx))
	b, ierr := Inspect(ctx, bin)
	if ierr != nil || relay.failure() != nil {
		return Binaries{}, fmt.Errorf("download PostgreSQL from %s: %w", repositoryURL, errors.Join(relay.failure(), err, ierr))
	}
	return b, nil
}

// fetch lets the library download and unpack. It has no call for just that: Start does it first, and then starts a server. Here that last step is made to fail:
// the data folder claims to be initialised and holds nothing.
func fetch(ctx context.Context, repositoryURL, dir string) (err error) {
	scratch, err := os.MkdirTemp("", "pgdownload-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	data := filepath.Join(scratch, "data")
	major, _, _ := strings.Cut(string(downloadVersion), ".")
	if err := os.Mkdir(data, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(data, "PG_VERSION"), []byte(major+"\n"), 0o600); err != nil {
		return err
	}
	port, err := freePort(ctx)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // the server's user runs what is in it
		return err
	}
	return embedded.NewDatabase(embedded.DefaultConfig().
		Version(downloadVersion).
		BinaryRepositoryURL(repositoryURL).
		CachePath(filepath.Join(scratch, "cache")).
		RuntimePath(filepath.Join(scratch, "runtime")).
		BinariesPath(dir).
		DataPath(data).
		Port(uint32(port)). // a port fits
		Logger(io.Discard)).Start()
}

// relay stands between the library and the repository, because the library waits without bound, knows no context, and takes a build without a checksum.
type relay struct {
	listener net.Listener
	server   *http.Server
	client   *http.Client
	upstream string
	served   sync.WaitGroup

	mu  sync.Mutex // guards err
	err error
}

func newRelay(ctx context.Context, upstream string) (*relay, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("download: %w", err)
	}
	r := &relay{
		listener: listener, upstream: strings.TrimRight(upstream, "/"),
		client: &http.Client{Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, ResponseHeaderTimeout: responseTimeout, DisableKeepAlives: true}},
	}
	r.server = &http.Server{
		ReadHeaderTimeout: responseTimeout,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		Handler:           http.HandlerFunc(r.serve),
	}
	r.served.Go(func() { _ = r.server.Serve(listener) }) // ends by close
	return r, nil
}

func (r *relay) url() string { return "http://" + r.listener.Addr().String() }

func (r *relay) close(ctx context.Context) error {
	err := r.server.Shutdown(context.WithoutCancel(ctx))
	r.served.Wait()
	return err
}

func (r *relay) failure() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// serve passes one file on, or remembers why it could not.
func (r *relay) serve(w http.ResponseWriter, req *http.Request) {
	if err := r.pass(w, req); err != nil {
		r.mu.Lock()
		r.err = errors.Join(r.err, err)
		r.mu.Unlock()
		// What was begun is cut off, so that it is not taken for complete.
		panic(http.ErrAbortHandler)
	}
}

func (r *relay) pass(w http.ResponseWriter, req *http.Request) error {
	out, err := http.NewRequestWithContext(req.Context(), http.MethodGet, r.upstream+req.URL.Path, nil) //nolint:gosec // the repository is the operator's choice, the path the library's
	if err != nil {
		return err
	}
	resp, err := r.client.Do(out) //nolint:gosec // as above
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end or given up
	if resp.StatusCode != http.StatusOK {
		err := fmt.Errorf("%s: %s", req.URL.Path, resp.Status)
		if strings.HasSuffix(req.URL.Path, ".sha256") {
			err = errors.Join(ErrUnverified, err)
		}
		return err
	}
	if resp.ContentLength >= 0 {
		w.Header().Set("Content-Length", strconv.FormatInt(resp.ContentLength, 10))
	}
	_, err = io.Copy(w, resp.Body)
	return err
}
