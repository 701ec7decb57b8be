package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"postrider.dev/pkg/pg"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/segment"
)

// Partition is a row of the catalogue.
type Partition struct {
	Name        string
	Shard       message.ShardID
	FirstOffset message.Offset
	LastOffset  message.Offset
	LastSeenAt  time.Time
}

// Sighting is what a stretch of a shard's log says about one partition.
type Sighting struct {
	Name        string
	First, Last message.Offset
	At          time.Time // of the last one
}

// Behind is a shard whose catalogue does not know its whole log yet.
type Behind struct {
	Shard   message.ShardID
	QueueID int64
	Upto    message.Offset // every message below it is in the catalogue
	Head    message.Offset
}

// Catalogue enters what the log of b.Shard says from b.Upto up to upto, and reports whether it did: false means that another writer has been there, and
// nothing was written. sightings MUST hold every partition of that stretch once.
func (c *Control) Catalogue(ctx context.Context, b Behind, upto message.Offset, sightings []Sighting) (bool, error) {
	slices.SortFunc(sightings, func(a, b Sighting) int { return strings.Compare(a.Name, b.Name) }) // one order of locks for all writers of a queue
	n := len(sightings)
	names, firsts, lasts, seen := make([]string, n), make([]int64, n), make([]int64, n), make([]time.Time, n)
	for i, s := range sightings {
		names[i], firsts[i], lasts[i], seen[i] = s.Name, int64(s.First), int64(s.Last), s.At
	}
	advanced := false
	err := c.inTx(ctx, func(tx pg.Tx) error {
		tag, err := tx.Exec(ctx, c.s.sql.text("partitions_advance"), upto, b.Shard, b.Upto)
		if err != nil {
			return fmt.Errorf("advance catalogue: %w", err)
		}
		if advanced = tag.RowsAffected() == 1; !advanced || n == 0 {
			return nil
		}
		return c.exec(ctx, tx, "partitions_upsert", names, firsts, lasts, seen, b.QueueID, b.Shard)
	})
	return advanced, err
}

// CatalogueFromLog reads at most segments segments of the log behind the catalogue of b.Shard and enters the partitions in them. It returns b moved on;
// the catalogue is complete when Upto has reached Head.
func (c *Control) CatalogueFromLog(ctx context.Context, b Behind, segments int) (Behind, error) {
	read, err := c.readSegments(ctx, b.Shard, "segments_from", b.Shard, b.Upto, b.Head, segments)
	if err != nil {
		return b, err
	}
	upto := b.Upto
	if len(read) == 0 {
		upto = b.Head // trimmed meanwhile: nothing is left to enter
	}
	seen := make(map[string]*Sighting)
	for _, s := range read {
		for i := range s.Body.Len() {
			frame, _ := s.Body.Frame(i)
			name, err := message.FramePartition(frame)
			if err != nil {
				return b, fmt.Errorf("message %d of shard %d: %w", int64(s.Base)+int64(i), b.Shard, err)
			}
			at := s.Base + message.Offset(i)
			if known := seen[string(name)]; known != nil {
				known.Last, known.At = at, s.CreatedAt
			} else {
				seen[string(name)] = &Sighting{Name: string(name), First: at, Last: at, At: s.CreatedAt}
			}
		}
		upto = s.End()
	}
	sightings := make([]Sighting, 0, len(seen))
	for _, s := range seen {
		sightings = append(sightings, *s)
	}
	ok, err := c.Catalogue(ctx, b, upto, sightings)
	if err == nil && ok {
		b.Upto = upto
	}
	return b, err
}

// BehindAfter returns up to limit shards whose catalogue is behind, by id after the one given. It looks at every shard there is: for the start of a
// dispatcher and once in a while. BehindOf is for the shards just written to.
func (c *Control) BehindAfter(ctx context.Context, after message.ShardID, limit int) ([]Behind, error) {
	return c.behind(ctx, "partitions_behind", after, limit)
}

// BehindOf returns which of the shards have a catalogue that is behind.
func (c *Control) BehindOf(ctx context.Context, shards []message.ShardID) ([]Behind, error) {
	return c.behind(ctx, "partitions_behind_of", shards)
}

func (c *Control) behind(ctx context.Context, statement string, args ...any) ([]Behind, error) {
	rows, err := c.on().Query(ctx, c.s.sql.text(statement), args...)
	if err != nil {
		return nil, fmt.Errorf("find shards behind: %w", err)
	}
	behind, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Behind])
	if err != nil {
		return nil, fmt.Errorf("find shards behind: %w", err)
	}
	return behind, nil
}

// ErrNotListed says that partitions of an encrypted queue cannot be listed: their names are in what is sealed, and nowhere else.
var ErrNotListed = errors.New("names of partitions of an encrypted queue are not kept")

// ListPartitions returns up to limit partitions of the queue by name and shard, after a name and shard: a partition that is used in several lanes comes once
// for each. For an encrypted queue the error matches ErrNotListed.
func (c *Control) ListPartitions(ctx context.Context, q Queue, after string, afterShard message.ShardID, limit int) ([]Partition, error) {
	if q.Encrypted() {
		return nil, ErrNotListed
	}
	rows, err := c.on().Query(ctx, c.s.sql.text("partitions_page"), q.ID, after, afterShard, limit)
	if err != nil {
		return nil, fmt.Errorf("list partitions: %w", err)
	}
	page, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Partition])
	if err != nil {
		return nil, fmt.Errorf("list partitions: %w", err)
	}
	return page, nil
}

// wholeSegment is a segment with its body.
type wholeSegment struct {
	segment.Directory

	CreatedAt time.Time
	Body      segment.Body
}

// readSegments returns the segments of a shard that a statement finds, decoded.
func (c *Control) readSegments(ctx context.Context, shard message.ShardID, statement string, args ...any) ([]wholeSegment, error) {
	found, err := c.s.segments(ctx, c.on(), shard, statement, args...)
	if err != nil {
		return nil, err
	}
	read := make([]wholeSegment, len(found))
	for i, seg := range found {
		read[i] = wholeSegment{Directory: seg.Directory, CreatedAt: seg.CreatedAt}
		if read[i].Body, err = c.dec.Body(seg.Directory, seg.Codec, seg.Body); err != nil {
			return nil, fmt.Errorf("read segments: %w", err)
		}
	}
	return read, nil
}
