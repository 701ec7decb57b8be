package redisconn

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"postrider.dev/pkg/clock"
)

// Handler receives what a Subscriber hears, one call at a time. It MUST be quick: while it runs nothing is read, and Redis cuts off slow readers.
type Handler interface {
	// OnSubscribed is called each time Redis has confirmed all channels, at first and after every loss: everything may have changed meanwhile.
	// Whatever is published after the confirmation is heard, so who re-reads the truth now misses nothing.
	OnSubscribed()
	// OnMessage is called for each message.
	OnMessage(channel string, payload []byte)
	// OnLost is called when the subscription is lost or could not be made.
	OnLost(err error)
}

// SubscriberOptions are optional; zero values mean the defaults named.
type SubscriberOptions struct {
	// PingEvery: after so much silence a ping is sent, and after as much again without an answer the subscription is dead; 3 s.
	PingEvery time.Duration
	// MaxPause between two attempts to subscribe; they grow from 50 ms, jittered; 2 s.
	MaxPause time.Duration
}

const firstPause = 50 * time.Millisecond

// ErrSilent says that Redis answered neither with a message nor to a ping.
var ErrSilent = errors.New("subscription is silent")

// Subscriber keeps one subscription alive.
type Subscriber struct {
	client   *Client
	clk      clock.Clock
	handler  Handler
	channels []string
	opts     SubscriberOptions
	up       atomic.Bool
}

// NewSubscriber returns a subscriber; Run makes it listen.
func NewSubscriber(client *Client, clk clock.Clock, handler Handler, opts SubscriberOptions, channels ...string) *Subscriber {
	if opts.PingEvery == 0 {
		opts.PingEvery = 3 * time.Second
	}
	if opts.MaxPause == 0 {
		opts.MaxPause = 2 * time.Second
	}
	return &Subscriber{client: client, clk: clk, handler: handler, channels: channels, opts: opts}
}

// Subscribed says whether the subscription is confirmed and not known to be lost.
func (s *Subscriber) Subscribed() bool { return s.up.Load() }

// Run listens until ctx ends, which is a clean end. The handler is never called after Run has returned.
func (s *Subscriber) Run(ctx context.Context) error {
	if len(s.channels) == 0 {
		return errors.New("subscribe: no channels")
	}
	for pause := firstPause; ; {
		confirmed, err := s.listen(ctx)
		s.up.Store(false)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // a clean end
		}
		s.handler.OnLost(err)
		if confirmed {
			pause = firstPause
		}
		if s.clk.Sleep(ctx, pause/2+rand.N(pause)) != nil { //nolint:gosec // jitter needs no secret
			return nil //nolint:nilerr // ctx ended, which is a clean end
		}
		pause = min(2*pause, s.opts.MaxPause)
	}
}

// listen subscribes once and reads until it fails or ctx ends.
func (s *Subscriber) listen(ctx context.Context) (confirmed bool, err error) {
	sub := s.client.Subscribe(ctx)
	defer sub.Close()                                          //nolint:errcheck // a lost connection has nothing to say
	stop := context.AfterFunc(ctx, func() { _ = sub.Close() }) // wakes the reader
	defer stop()
	if err := sub.Subscribe(ctx, s.channels...); err != nil {
		return false, fmt.Errorf("subscribe: %w", err)
	}
	missing := make(map[string]bool, len(s.channels))
	for _, name := range s.channels {
		missing[name] = true
	}
	pinged := false
	for {
		got, err := sub.ReceiveTimeout(ctx, s.opts.PingEvery)
		if err != nil {
			if !isTimeout(err) {
				return confirmed, fmt.Errorf("receive: %w", err)
			}
			if pinged || !confirmed {
				return confirmed, ErrSilent
			}
			if err := sub.Ping(ctx); err != nil {
				return confirmed, fmt.Errorf("ping: %w", err)
			}
			pinged = true
			continue
		}
		pinged = false
		switch m := got.(type) {
		case *redis.Subscription:
			delete(missing, m.Channel)
			if !confirmed && len(missing) == 0 {
				confirmed = true
				s.up.Store(true)
				s.handler.OnSubscribed()
			}
		case *redis.Message:
			s.handler.OnMessage(m.Channel, []byte(m.Payload))
		}
	}
}

func isTimeout(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout()
}
