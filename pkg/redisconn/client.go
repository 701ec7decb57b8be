package redisconn

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Options of a client. Zero values mean the defaults named.
type Options struct {
	// PoolSize is the number of connections for commands; 4. Each subscriber has one more.
	PoolSize int
	// DialTimeout bounds the making of a connection; 1 s.
	DialTimeout time.Duration
	// CommandTimeout bounds one read or write; 1 s.
	CommandTimeout time.Duration
	// PublishTimeout bounds a whole Publish, the wait for a connection included; 250 ms.
	PublishTimeout time.Duration
}

func (o Options) withDefaults() Options {
	if o.PoolSize == 0 {
		o.PoolSize = 4
	}
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{{&o.DialTimeout, time.Second}, {&o.CommandTimeout, time.Second}, {&o.PublishTimeout, 250 * time.Millisecond}} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	return o
}

// Client is a pool of connections to one Redis. It is safe for concurrent use.
type Client struct {
	*redis.Client
	opts Options
}

// Open reads a redis://, rediss:// or unix:// URL. It does not connect: a Redis that is away is no reason not to start.
func Open(url string, opts Options) (*Client, error) {
	opts = opts.withDefaults()
	cfg, err := redis.ParseURL(url)
	if err != nil {
		return nil, fmt.Errorf("parse redis url: %w", err)
	}
	cfg.PoolSize = opts.PoolSize
	cfg.DialTimeout = opts.DialTimeout
	cfg.DialerRetries = 1
	cfg.ReadTimeout = opts.CommandTimeout
	cfg.WriteTimeout = opts.CommandTimeout
	cfg.PoolTimeout = opts.CommandTimeout
	cfg.ContextTimeoutEnabled = true
	cfg.MaxRetries = -1 // the caller knows whether a repetition is worth it
	cfg.Protocol = 2
	cfg.DisableIdentity = true
	cfg.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return &Client{Client: redis.NewClient(cfg), opts: opts}, nil
}

// Publish sends a hint. It returns within PublishTimeout, whatever Redis does; nil means that Redis took it, not that anyone heard.
func (c *Client) Publish(ctx context.Context, channel string, payload []byte) error {
	ctx, cancel := context.WithTimeout(ctx, c.opts.PublishTimeout)
	defer cancel()
	if err := c.Client.Publish(ctx, channel, payload).Err(); err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	return nil
}

// Ready is nil when Redis answers within CommandTimeout.
func (c *Client) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.opts.CommandTimeout)
	defer cancel()
	if err := c.Ping(ctx).Err(); err != nil {
		return fmt.Errorf("redis: %w", err)
	}
	return nil
}

// SilenceDriver keeps the driver from writing lines of its own to stderr; what matters comes back as an error. It changes the whole process, so main
// calls it, once, before anything is opened.
func SilenceDriver() { redis.SetLogger(&logging.VoidLogger{}) }
