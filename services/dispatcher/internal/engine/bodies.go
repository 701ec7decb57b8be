package engine

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/window"
	"postrider.dev/services/dispatcher/internal/engine/segcache"
)

// bodyRead is how many segments one read brings.
const bodyRead = 32

// read is a message as it is in the log.
type read struct {
	message.Message

	at time.Time // when it was committed
}

// messages reads messages by offset, ascending, several segments in one read. What was trimmed is left out.
func (e *Engine) messages(ctx context.Context, shard message.ShardID, offsets []message.Offset) (map[message.Offset]read, error) {
	return persist(ctx, e, func(ctx context.Context) (map[message.Offset]read, error) { return e.messagesOnce(ctx, shard, offsets) })
}

func (e *Engine) messagesOnce(ctx context.Context, shard message.ShardID, offsets []message.Offset) (map[message.Offset]read, error) {
	out := make(map[message.Offset]read, len(offsets))
	if err := e.sameDatabase(ctx); err != nil {
		return nil, err
	}
	var absent []message.Offset
	for _, at := range offsets {
		b, ok := e.segments.Body(shard, at)
		if !ok {
			absent = append(absent, at)
			continue
		}
		if err := e.open(b, at, out); err != nil {
			return nil, err
		}
	}
	if len(absent) == 0 {
		return out, nil
	}
	if !e.readers.enter(ctx) {
		return nil, context.Cause(ctx)
	}
	defer e.readers.leave()
	ctx, cancel := context.WithTimeout(ctx, e.cfg.StatementTimeout)
	defer cancel()
	bases, err := e.bases(ctx, shard, absent)
	if err != nil {
		return nil, err
	}
	for chunk := range slices.Chunk(bases, bodyRead) {
		if err := e.readBodies(ctx, shard, chunk, absent, out); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// readBodies reads segments and opens the wanted messages in them.
func (e *Engine) readBodies(ctx context.Context, shard message.ShardID, bases, wanted []message.Offset, out map[message.Offset]read) error {
	segments, err := e.db.Bodies(ctx, shard, bases)
	if err != nil {
		return err
	}
	for _, seg := range segments {
		b := segcache.NewBody(seg.Directory, seg.CreatedAt, seg.Codec, seg.Body)
		e.segments.PutBody(shard, b)
		for _, at := range wanted {
			if at >= seg.Base && at < seg.End() {
				if err := e.open(b, at, out); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (e *Engine) open(b *segcache.Body, at message.Offset, out map[message.Offset]read) error {
	body, err := b.Open(e.decoder)
	if err != nil {
		return fmt.Errorf("open segment %d: %w", b.Directory.Base, err)
	}
	m, err := body.Message(int(at - b.Directory.Base))
	if err != nil {
		return fmt.Errorf("read message %d: %w", at, err)
	}
	out[at] = read{Message: m, at: b.At}
	return nil
}

// bases returns the segments in which the offsets lie.
func (e *Engine) bases(ctx context.Context, shard message.ShardID, offsets []message.Offset) ([]message.Offset, error) {
	var bases []message.Offset
	end := message.Offset(-1)
	for _, at := range offsets {
		if at < end {
			continue // in the same segment as the one before
		}
		d, ok := e.segments.Directory(shard, at)
		if !ok {
			found, err := e.db.Directories(ctx, shard, at, at+1, 1)
			if err != nil {
				return nil, err
			}
			if len(found) == 0 || found[0].Base > at {
				continue // trimmed
			}
			d = found[0]
			e.segments.PutDirectory(shard, d)
		}
		bases, end = append(bases, d.Base), d.End()
	}
	return bases, nil
}

// fillDeadLetters reads what a change's dead letters keep of their messages.
func (e *Engine) fillDeadLetters(ctx context.Context, g *gshard, letters []window.DeadLetter) error {
	read := map[message.Offset]*message.Message{}
	if err := e.readLetters(ctx, g.shard.id, letters, read); err != nil {
		return err
	}
	e.useLetters(letters, read)
	return nil
}

// readLetters reads messages into a map; one that was trimmed is there as nil.
func (e *Engine) readLetters(ctx context.Context, shard message.ShardID, letters []window.DeadLetter, into map[message.Offset]*message.Message) error {
	offsets := make([]message.Offset, len(letters))
	for i := range letters {
		offsets[i] = letters[i].Offset
	}
	slices.Sort(offsets)
	found, err := e.messages(ctx, shard, offsets)
	if err != nil {
		return err
	}
	for _, at := range offsets {
		into[at] = nil
		if m, ok := found[at]; ok {
			into[at] = &m.Message
		}
	}
	return nil
}

// useLetters names the dead letters and gives them their snapshots; it returns those whose messages were not read yet.
func (e *Engine) useLetters(letters []window.DeadLetter, from map[message.Offset]*message.Message) (missing []window.DeadLetter) {
	for i := range letters {
		m, ok := from[letters[i].Offset]
		if !ok {
			missing = append(missing, letters[i])
			continue
		}
		letters[i].Snapshot = m
		letters[i].ID = uuid.Must(uuid.NewV7()) // fails only without a random source
	}
	return missing
}

// delivery is a message as it is handed out.
func delivery(s *gshard, m window.Message, body read) *queuev1.Delivery {
	d := &queuev1.Delivery{
		MessageId: message.ID{Shard: s.shard.id, Offset: m.Offset}.String(), Partition: body.Partition, Offset: int64(m.Offset),
		Payload: body.Payload, ContentType: body.ContentType, ClientId: body.ClientID,
		Attempt: int32(m.Attempt), CreatedAt: timestamppb.New(body.at),
		Priority: int32(s.grp.layout.Priority(s.index)),
	}
	if len(body.Headers) > 0 {
		d.Headers = make(map[string]string, len(body.Headers))
		for _, h := range body.Headers {
			d.Headers[h.Name] = h.Value
		}
	}
	return d
}
