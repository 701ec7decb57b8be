// Package link dials out: to Redis, which carries hints between hosts.
package link

import (
	"context"

	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/redisconn"
	"postrider.dev/pkg/run"
	meshv1 "postrider.dev/proto/gen/postrider/private/mesh/v1"
	"postrider.dev/services/meshhint/internal/engine"
)

const (
	// queueLen is how many batches may wait for Redis.
	queueLen = 1024
	// maxFrameHints bounds one published frame.
	maxFrameHints = 10_000
	// maxFrameBytes bounds a frame that is taken: nobody honest sends more.
	maxFrameBytes = 16 << 20
)

// Receiver gets what other hosts hint at.
type Receiver interface {
	FromCarrier(hints []*meshv1.Hint)
	EverythingChanged()
}

// Redis publishes hints on one channel and receives those of the other sidecars.
type Redis struct {
	client   *redisconn.Client
	channel  string
	self     string // this sidecar's id: its own frames come back and are skipped
	metrics  *engine.Metrics
	log      *zap.Logger
	sub      *redisconn.Subscriber
	receiver Receiver
	queue    chan []*meshv1.Hint
}

// NewRedis returns a carrier that does nothing until Run. Receive must have been called by then.
func NewRedis(client *redisconn.Client, clk clock.Clock, channel, self string, m *engine.Metrics, log *zap.Logger) *Redis {
	r := &Redis{client: client, channel: channel, self: self, metrics: m, log: log, queue: make(chan []*meshv1.Hint, queueLen)}
	r.sub = redisconn.NewSubscriber(client, clk, r, redisconn.SubscriberOptions{}, channel)
	return r
}

// Receive says who gets the hints of other hosts.
func (r *Redis) Receive(to Receiver) { r.receiver = to }

// Publish queues hints for the other hosts. It never blocks: what does not fit is dropped and counted.
func (r *Redis) Publish(hints []*meshv1.Hint) {
	select {
	case r.queue <- hints:
	default:
		r.metrics.CarrierDropped(len(hints))
	}
}

// Run publishes and receives until ctx ends.
func (r *Redis) Run(ctx context.Context) error {
	return run.All(ctx, run.Part{Name: "subscriber", Run: r.sub.Run}, run.Part{Name: "publisher", Run: r.publish})
}

func (r *Redis) publish(ctx context.Context) error {
	for {
		select {
		case hints := <-r.queue:
			r.send(ctx, r.gather(hints))
		case <-ctx.Done():
			return nil
		}
	}
}

// gather joins what waits to one frame: while one is on its way the next grows.
func (r *Redis) gather(hints []*meshv1.Hint) []*meshv1.Hint {
	frame := append([]*meshv1.Hint(nil), hints...)
	for len(frame) < maxFrameHints {
		select {
		case more := <-r.queue:
			frame = append(frame, more...)
		default:
			return frame
		}
	}
	return frame
}

func (r *Redis) send(ctx context.Context, hints []*meshv1.Hint) {
	payload, err := proto.Marshal(&meshv1.CarriedHints{From: r.self, Hints: hints})
	if err == nil {
		err = r.client.Publish(ctx, r.channel, payload)
	}
	if err != nil {
		r.metrics.CarrierDropped(len(hints))
		if ctx.Err() == nil {
			r.log.Debug("hints not published", zap.Error(err))
		}
	}
}

// OnSubscribed tells everybody that anything may have changed: what was published before is unknown.
func (r *Redis) OnSubscribed() {
	r.metrics.CarrierUp(true)
	r.receiver.EverythingChanged()
}

// OnMessage passes on a frame of another sidecar. A frame that cannot be read is dropped: whoever can reach Redis can send one.
func (r *Redis) OnMessage(_ string, payload []byte) {
	frame := &meshv1.CarriedHints{}
	if len(payload) > maxFrameBytes || proto.Unmarshal(payload, frame) != nil {
		r.log.Warn("unreadable frame of hints", zap.Int("bytes", len(payload)))
		return
	}
	if frame.GetFrom() != r.self {
		r.receiver.FromCarrier(frame.GetHints())
	}
}

// OnLost notes that hints of other hosts do not arrive.
func (r *Redis) OnLost(err error) {
	r.metrics.CarrierUp(false)
	r.log.Warn("redis carrier lost, re-polls serve meanwhile", zap.Error(err))
}
