package ingress

import (
	"errors"
	"fmt"
	"time"

	"postrider.dev/pkg/config"
	"postrider.dev/services/ingress/internal/domain"
	"postrider.dev/services/ingress/internal/engine/tail"
)

// Config is what the ingress is told.
type Config struct {
	config.Common

	HTTPAddr      string        `env:"HTTP_ADDR" doc:"public REST listener"`
	GRPCAddr      string        `env:"GRPC_ADDR" doc:"public gRPC listener"`
	Auth          string        `env:"AUTH" doc:"on, or off: everybody is an administrator of tenant default; refused off loopback unless ALLOW_INSECURE"`
	AllowInsecure bool          `env:"ALLOW_INSECURE" doc:"allow AUTH=off on listeners that other machines can reach"`
	AdminKey      config.Secret `env:"ADMIN_KEY" doc:"API key (prk_<id>_<secret>) that always exists, with role admin in tenant default; empty: none is made"`

	DispatcherAddrs []string `env:"DISPATCHER_ADDRS" doc:"dispatchers, this host's first; empty: the node directory names them"`
	MeshhintAddr    string   `env:"MESHHINT_ADDR" doc:"the host's sidecar; empty: none, the node directory is polled each second instead"`
	AdvertiseHTTP   string   `env:"ADVERTISE_HTTP" doc:"address of the REST listener as others reach it, for the node directory; empty: the listener's own"`
	AdvertiseGRPC   string   `env:"ADVERTISE_GRPC" doc:"address of the gRPC listener as others reach it, for the node directory; empty: the listener's own"`

	RequestTimeout     time.Duration `env:"REQUEST_TIMEOUT" doc:"most time for a request, on top of what a pop waits"`
	MaxBodyBytes       int64         `env:"MAX_BODY_BYTES" doc:"largest request body (up to 32 MiB)"`
	ExchangeStreams    int           `env:"EXCHANGE_STREAMS" doc:"streams to each dispatcher"`
	MaxInFlight        int64         `env:"MAX_IN_FLIGHT" doc:"operations in flight, waiting pops among them; more are refused with RESOURCE_EXHAUSTED"`
	MaxInFlightSize    int64         `env:"MAX_IN_FLIGHT_BYTES" doc:"bytes of requests in flight; more are refused with RESOURCE_EXHAUSTED"`
	MaxAnswerBytes     int64         `env:"MAX_ANSWER_BYTES" doc:"memory for answers with messages or dead letters in them that clients have not read yet, 16 KiB of each excepted; with little left pops get fewer bytes, and a large message waits for room or is refused with RESOURCE_EXHAUSTED"`
	AnswerTimeout      time.Duration `env:"ANSWER_TIMEOUT" doc:"how long a client may leave an answer unread, and a second more for each MiB; then it is cut off, and what it leased comes back"`
	ModesRefresh       time.Duration `env:"MODES_REFRESH" doc:"how often the modes of the fleet are read again, in case a hint was lost (100ms to 10m); each second without a sidecar"`
	RouteRefresh       time.Duration `env:"ROUTE_REFRESH" doc:"how long it is believed which dispatcher a queue is routed to, in case a hint was lost (10ms to 10m)"`
	MaxSubscriptions   int64         `env:"MAX_SUBSCRIPTIONS" doc:"subscriptions open on this node; more are refused with RESOURCE_EXHAUSTED"`
	SubscriberMessages int64         `env:"SUBSCRIBER_BUFFER_MESSAGES" doc:"how many messages a subscriber may be behind before it reads the log by itself or, if it does not read, is closed"`
	SubscriberBytes    int64         `env:"SUBSCRIBER_BUFFER_BYTES" doc:"the same in bytes; both are memory of each subscribed queue"`
	FailoverWait       time.Duration `env:"FAILOVER_WAIT" doc:"how long a request waits for a dispatcher to be in reach before it is answered 503"`
	KeyFresh           time.Duration `env:"KEY_FRESH" doc:"how long an API key is believed without asking the database: the bound of a revocation"`
	KeyStale           time.Duration `env:"KEY_STALE" doc:"how long a known API key is honoured while the database is away"`
	CORSOrigins        []string      `env:"CORS_ORIGINS" doc:"origins whose browsers may call, such as https://app.example.com; empty: none"`
}

// Defaults returns the settings of an ingress that is told nothing.
func Defaults() Config {
	subs := tail.Defaults()
	return Config{
		Common:             config.Defaults(),
		HTTPAddr:           "127.0.0.1:7400",
		GRPCAddr:           "127.0.0.1:7401",
		Auth:               authOn,
		RequestTimeout:     30 * time.Second,
		MaxBodyBytes:       domain.RequestBytes,
		MeshhintAddr:       "127.0.0.1:7405",
		ExchangeStreams:    2,
		MaxInFlight:        50_000,
		MaxInFlightSize:    256 << 20,
		MaxAnswerBytes:     256 << 20,
		AnswerTimeout:      30 * time.Second,
		MaxSubscriptions:   subs.MaxSubscriptions,
		SubscriberMessages: subs.BufferMessages,
		SubscriberBytes:    subs.BufferBytes,
		FailoverWait:       time.Second,
		ModesRefresh:       time.Minute,
		RouteRefresh:       time.Minute,
		KeyFresh:           5 * time.Second,
		KeyStale:           10 * time.Minute,
	}
}

const (
	authOn  = "on"
	authOff = "off"
)

// Validate reports every problem.
func (c Config) Validate() error {
	errs := []error{
		c.Common.Validate(),
		config.NotEmpty("DATABASE_URL", c.DatabaseURL),
		config.Address("HTTP_ADDR", c.HTTPAddr),
		config.Address("GRPC_ADDR", c.GRPCAddr),
		config.OneOf("AUTH", c.Auth, authOn, authOff),
		config.Between("REQUEST_TIMEOUT", c.RequestTimeout, time.Second, time.Minute),
		config.Between("MAX_BODY_BYTES", c.MaxBodyBytes, 1<<10, domain.RequestBytes),
		config.Between("EXCHANGE_STREAMS", c.ExchangeStreams, 1, 64),
		config.Between("MAX_IN_FLIGHT", c.MaxInFlight, 1, 10_000_000),
		config.Between("MAX_IN_FLIGHT_BYTES", c.MaxInFlightSize, domain.RequestBytes, 1<<40),
		config.Between("MAX_ANSWER_BYTES", c.MaxAnswerBytes, 3*domain.RequestBytes, 1<<40), // the largest answer, and its JSON
		config.Between("ANSWER_TIMEOUT", c.AnswerTimeout, time.Second, 10*time.Minute),
		config.Between("MODES_REFRESH", c.ModesRefresh, 100*time.Millisecond, 10*time.Minute),
		config.Between("ROUTE_REFRESH", c.RouteRefresh, 10*time.Millisecond, 10*time.Minute),
		config.Between("MAX_SUBSCRIPTIONS", c.MaxSubscriptions, 1, 1_000_000),
		config.Between("SUBSCRIBER_BUFFER_MESSAGES", c.SubscriberMessages, 1, 1_000_000),
		config.Between("SUBSCRIBER_BUFFER_BYTES", c.SubscriberBytes, 1<<10, 1<<30),
		config.Between("FAILOVER_WAIT", c.FailoverWait, 0, 30*time.Second),
		config.Between("KEY_FRESH", c.KeyFresh, 0, time.Minute),
		config.Between("KEY_STALE", c.KeyStale, c.KeyFresh, time.Hour),
	}
	for _, addr := range c.DispatcherAddrs {
		errs = append(errs, config.Address("DISPATCHER_ADDRS", addr))
	}
	if c.MeshhintAddr != "" {
		errs = append(errs, config.Address("MESHHINT_ADDR", c.MeshhintAddr))
	}
	if c.AdminKey.IsSet() {
		if _, err := domain.ParseKey(c.AdminKey.Reveal()); err != nil {
			errs = append(errs, fmt.Errorf("ADMIN_KEY: %w", err))
		}
	}
	if c.Auth == authOff && !c.AllowInsecure {
		errs = append(errs, insecure("HTTP_ADDR", c.HTTPAddr), insecure("GRPC_ADDR", c.GRPCAddr))
	}
	return errors.Join(errs...)
}

func insecure(name, addr string) error {
	if config.IsLoopback(addr) {
		return nil
	}
	return fmt.Errorf("%s: %q can be reached from other machines and AUTH is off; set ALLOW_INSECURE=true if that is meant", name, addr)
}
