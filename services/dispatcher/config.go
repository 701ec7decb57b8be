package dispatcher

import (
	"errors"
	"fmt"
	"time"

	"postrider.dev/pkg/config"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/domain/seal"
	"postrider.dev/services/dispatcher/internal/engine"
)

// Config is what a dispatcher is told.
type Config struct {
	config.Common

	Addr          string `env:"ADDR" doc:"internal gRPC listener, for the ingress; not public"`
	AdvertiseAddr string `env:"ADVERTISE_ADDR" doc:"address under which ingresses reach ADDR; empty: the address listened on"`
	MeshhintAddr  string `env:"MESHHINT_ADDR" doc:"the host's sidecar; empty: no hints, shared re-polls serve instead"`

	EncryptionKeys config.Secret `env:"ENCRYPTION_KEYS" doc:"master keys of encrypted queues, as id:base64 of 32 bytes, with commas between; the first wraps, all unwrap; the same for all dispatchers; empty: no queue can be encrypted"`

	RepollMin      time.Duration `env:"REPOLL_MIN" doc:"first shared re-poll after a miss of a waiting pop; doubles up to REPOLL_MAX"`
	RepollMax      time.Duration `env:"REPOLL_MAX" doc:"longest time between two shared re-polls of what is waited on"`
	ReapEvery      time.Duration `env:"REAP_EVERY" doc:"time between two sweeps for leases that ran out"`
	ModesRefresh   time.Duration `env:"MODES_REFRESH" doc:"how often the modes of the fleet are read again, in case a hint was lost (100ms to 10m); each second without a sidecar"`
	TrimEvery      time.Duration `env:"TRIM_EVERY" doc:"time between two rounds of retention; a round looks at 1,000 queues at most"`
	CatalogueEvery time.Duration `env:"CATALOGUE_EVERY" doc:"time between two rounds of writing new partition names into the listing"`

	DefaultRetention time.Duration `env:"DEFAULT_RETENTION" doc:"retention of queues that did not choose; 0: none. The same on all dispatchers"`

	ViewBytes      int64 `env:"VIEW_BYTES" doc:"memory of all views together"`
	DirectoryBytes int64 `env:"DIRECTORY_BYTES" doc:"memory of cached segment directories"`
	BodyBytes      int64 `env:"BODY_BYTES" doc:"memory of cached segment bodies"`
	QueuedBytes    int64 `env:"QUEUED_BYTES" doc:"bytes of pushes that wait for a commit; more are refused with RESOURCE_EXHAUSTED"`
	QueuedRequests int   `env:"QUEUED_REQUESTS" doc:"requests that wait for a commit; more are refused with RESOURCE_EXHAUSTED"`
	ParkedPops     int   `env:"PARKED_POPS" doc:"pops that may wait at one time; more are refused with RESOURCE_EXHAUSTED"`

	SpoolDir   string `env:"SPOOL_DIR" doc:"folder, of this process alone, for pushes that come while the database is away or in maintenance; empty: they are refused"`
	SpoolBytes int64  `env:"SPOOL_BYTES" doc:"disk that the spool may take (1 MiB to 1 TiB); pushes that would pass it are refused with SPOOL_FULL"`
}

// Defaults returns the settings of a dispatcher that is told nothing.
func Defaults() Config {
	e := engine.Defaults()
	return Config{
		Common:         config.Defaults(),
		Addr:           "127.0.0.1:7404",
		MeshhintAddr:   "127.0.0.1:7405",
		RepollMin:      e.RepollMin,
		RepollMax:      e.RepollMax,
		ReapEvery:      time.Second,
		ModesRefresh:   time.Minute,
		TrimEvery:      time.Second,
		CatalogueEvery: 500 * time.Millisecond,
		ViewBytes:      e.ViewBytes,
		DirectoryBytes: e.DirectoryBytes,
		BodyBytes:      e.BodyBytes,
		QueuedBytes:    e.QueuedBytes,
		QueuedRequests: e.QueuedRequests,
		ParkedPops:     e.ParkedPops,
		SpoolBytes:     1 << 30,
	}
}

// Validate reports every problem.
func (c Config) Validate() error {
	return errors.Join(
		c.Common.Validate(),
		config.NotEmpty("DATABASE_URL", c.DatabaseURL),
		config.Between("POOL_SIZE", c.PoolSize, minPool, 200),
		config.Address("ADDR", c.Addr),
		c.checkKeys(),
		config.NonLoopbackNeeds("ADDR", c.Addr, "CLUSTER_SECRET", c.ClusterSecret),
		config.Between("REPOLL_MIN", c.RepollMin, 10*time.Millisecond, time.Second),
		config.Between("REPOLL_MAX", c.RepollMax, c.RepollMin, 10*time.Second),
		config.Between("REAP_EVERY", c.ReapEvery, 50*time.Millisecond, time.Minute),
		config.Between("MODES_REFRESH", c.ModesRefresh, 100*time.Millisecond, 10*time.Minute),
		config.Between("CATALOGUE_EVERY", c.CatalogueEvery, 50*time.Millisecond, time.Minute),
		config.Between("TRIM_EVERY", c.TrimEvery, 50*time.Millisecond, time.Minute),
		config.Between("DEFAULT_RETENTION", c.DefaultRetention, 0, queue.MaxRetention),
		config.Between("VIEW_BYTES", c.ViewBytes, 1<<20, 1<<40),
		config.Between("DIRECTORY_BYTES", c.DirectoryBytes, 1<<20, 1<<40),
		config.Between("BODY_BYTES", c.BodyBytes, 1<<20, 1<<40),
		config.Between("QUEUED_BYTES", c.QueuedBytes, 1<<20, 1<<40),
		config.Between("QUEUED_REQUESTS", c.QueuedRequests, 16, 1<<24),
		config.Between("PARKED_POPS", c.ParkedPops, 1, 1<<24),
		config.Between("SPOOL_BYTES", c.SpoolBytes, 1<<20, 1<<40),
	)
}

// checkKeys says what is wrong with the master keys, and never shows one.
func (c Config) checkKeys() error {
	if _, err := seal.ParseMasters(c.EncryptionKeys.Reveal()); err != nil {
		return fmt.Errorf("ENCRYPTION_KEYS: %w", err)
	}
	return nil
}

// minPool is what is needed without one waiting for another all the time: two flush lanes, two work lanes, the poller, and two for control.
const minPool = 7

// engine returns the engine's share of the settings.
func (c Config) engine() engine.Config {
	e := engine.Defaults()
	e.RepollMin, e.RepollMax = c.RepollMin, c.RepollMax
	e.ViewBytes, e.DirectoryBytes, e.BodyBytes = c.ViewBytes, c.DirectoryBytes, c.BodyBytes
	e.QueuedBytes, e.QueuedRequests, e.ParkedPops = c.QueuedBytes, c.QueuedRequests, c.ParkedPops
	return e
}
