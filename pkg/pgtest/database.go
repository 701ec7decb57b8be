package pgtest

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/migrate"
	"postrider.dev/pkg/pg"
)

// Roles lets a test run as the production roles do: one role per schema, see deploy/postgres/roles.sql.
type Roles struct {
	// SQL creates the roles and their schemas; it is run by a superuser, before the migrations, and must be repeatable.
	SQL string
	// Prefix and a schema's name make the name of the schema's role, which also runs its migrations.
	Prefix string
}

// Database is one test's private database.
type Database struct {
	t     testing.TB
	url   string
	roles Roles
}

// New returns a pool on a fresh private database with the sets applied in the given order, as a superuser. Pool and database go at the test's end.
func New(t testing.TB, sets ...migrate.Set) *pg.DB {
	t.Helper()
	return NewDatabase(t, Roles{}, sets...).Open(pg.Options{})
}

// NewDatabase returns a fresh private database with the sets applied in the given order; with roles, each as its schema's role.
func NewDatabase(t testing.TB, roles Roles, sets ...migrate.Set) *Database {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	admin, err := shared.start(ctx)
	if err != nil {
		t.Fatal(explain(err))
	}
	tmpl, err := shared.template(ctx, admin, roles, sets)
	if err != nil {
		t.Fatalf("pgtest: template: %v", err)
	}
	name := "t_" + strings.ToLower(rand.Text())
	if err := execute(ctx, admin, fmt.Sprintf("CREATE DATABASE %s TEMPLATE %s", name, tmpl)); err != nil {
		t.Fatalf("pgtest: clone: %v", err)
	}
	t.Cleanup(func() {
		if err := execute(ctx, admin, fmt.Sprintf("DROP DATABASE %s WITH (FORCE)", name)); err != nil {
			t.Errorf("pgtest: drop: %v", err)
		}
	})
	d := &Database{t: t, url: withDatabase(admin, name), roles: roles}
	if roles.SQL != "" { // a clone has everything but the rights on the database itself
		if err := alone(ctx, admin, func(*pgx.Conn) error { return execute(ctx, d.url, roles.SQL) }); err != nil {
			t.Fatalf("pgtest: roles: %v", err)
		}
	}
	return d
}

// URL is a superuser's connection string.
func (d *Database) URL() string { return d.url }

// URLAs is a connection string whose sessions have the rights of a schema's role, and no others.
func (d *Database) URLAs(schema string) string { return withRole(d.url, d.roles.Prefix+schema) }

// Open returns a superuser's pool, closed at the test's end.
func (d *Database) Open(opts pg.Options) *pg.DB {
	d.t.Helper()
	return d.open(d.url, opts)
}

// OpenAs returns a pool of a schema's role, closed at the test's end.
func (d *Database) OpenAs(schema string, opts pg.Options) *pg.DB {
	d.t.Helper()
	return d.open(d.URLAs(schema), opts)
}

func (d *Database) open(url string, opts pg.Options) *pg.DB {
	d.t.Helper()
	db, err := pg.Open(d.t.Context(), url, opts)
	if err != nil {
		d.t.Fatalf("pgtest: %v", err)
	}
	d.t.Cleanup(db.Close)
	return db
}

// template is a database with migrations applied, made once.
type template struct {
	once sync.Once
	name string
	err  error
}

// template returns the name of the template for these migrations, making it if this process has not yet.
func (h *host) template(ctx context.Context, admin string, roles Roles, sets []migrate.Set) (string, error) {
	key, err := hash(roles, sets)
	if err != nil {
		return "", err
	}
	h.mu.Lock()
	tmpl, ok := h.templates[key]
	if !ok {
		tmpl = &template{name: "template_" + key}
		h.templates[key] = tmpl
	}
	h.mu.Unlock()
	tmpl.once.Do(func() { tmpl.err = tmpl.make(ctx, admin, roles, sets) })
	return tmpl.name, tmpl.err
}

// make fills the template. On a shared server ($PGTEST_URL) several processes do this at once: a lock lets the first one work, and the name appears
// only when the template is complete.
func (tmpl *template) make(ctx context.Context, admin string, roles Roles, sets []migrate.Set) error {
	return alone(ctx, admin, func(conn *pgx.Conn) error {
		var exists bool
		if err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", tmpl.name).Scan(&exists); err != nil || exists {
			return err
		}
		unfinished := "unfinished_" + strings.ToLower(rand.Text())
		if _, err := conn.Exec(ctx, "CREATE DATABASE "+unfinished+" TEMPLATE template0"); err != nil {
			return err
		}
		if err := fill(ctx, withDatabase(admin, unfinished), roles, sets); err != nil {
			_, derr := conn.Exec(ctx, "DROP DATABASE "+unfinished+" WITH (FORCE)")
			return errors.Join(err, derr)
		}
		_, err := conn.Exec(ctx, "ALTER DATABASE "+unfinished+" RENAME TO "+tmpl.name)
		return err
	})
}

// alone runs do while nobody else on the server makes a template or changes roles.
func alone(ctx context.Context, admin string, do func(*pgx.Conn) error) (err error) {
	conn, err := pgx.Connect(ctx, admin)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }() // also releases the lock
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock(hashtextextended('pgtest', 0))"); err != nil {
		return err
	}
	return do(conn)
}

func fill(ctx context.Context, url string, roles Roles, sets []migrate.Set) error {
	if roles.SQL != "" {
		if err := execute(ctx, url, roles.SQL); err != nil {
			return fmt.Errorf("roles: %w", err)
		}
	}
	for _, set := range sets {
		dsn := url
		if roles.SQL != "" {
			dsn = withRole(url, roles.Prefix+set.Schema)
		}
		if _, err := migrate.Up(ctx, clock.Real{}, dsn, set); err != nil {
			return err
		}
	}
	return nil
}

// hash names a template after everything that goes into it.
func hash(roles Roles, sets []migrate.Set) (string, error) {
	h := sha256.New()
	fmt.Fprintf(h, "%q %q", roles.SQL, roles.Prefix) //nolint:errcheck // a hash never fails
	for _, set := range sets {
		fmt.Fprintf(h, "schema %q", set.Schema) //nolint:errcheck // a hash never fails
		err := fs.WalkDir(set.FS, ".", func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			text, err := fs.ReadFile(set.FS, path)
			fmt.Fprintf(h, "file %q %q", path, text) //nolint:errcheck // a hash never fails
			return err
		})
		if err != nil {
			return "", fmt.Errorf("read migrations of %s: %w", set.Schema, err)
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:12]), nil
}

// execute runs statements on a connection of its own; several in one string are one transaction.
func execute(ctx context.Context, url, sql string) (err error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	_, err = conn.PgConn().Exec(ctx, sql).ReadAll()
	return err
}

// withDatabase replaces the database in a URL.
func withDatabase(dsn, database string) string {
	u, err := url.Parse(dsn)
	if err != nil {
		return dsn // the next connection reports it
	}
	u.Path = "/" + database
	return u.String()
}

// withRole makes a URL's sessions drop to a role.
func withRole(dsn, role string) string {
	u, err := url.Parse(dsn)
	if err != nil {
		return dsn // the next connection reports it
	}
	q := u.Query()
	q.Set("role", role)
	u.RawQuery = q.Encode()
	return u.String()
}
