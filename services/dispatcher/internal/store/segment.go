package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/seal"
	"postrider.dev/services/dispatcher/internal/domain/segment"
)

// Segment is a row of the log: its directory and its body, decrypted and not decompressed.
type Segment struct {
	segment.Directory

	CreatedAt time.Time
	Codec     segment.Codec
	Body      []byte

	flush             [16]byte
	key               int32
	partitions, sizes []byte
}

// Directories returns the directories of the segments of [from, to), beginning with the one that holds from, as many as have most messages or a little more.
// Where from was trimmed it begins with the next segment there is. None means that there is no message in [from, to), if a committed head is at or above to.
func (s *Store) Directories(ctx context.Context, shard message.ShardID, from, to message.Offset, most int) ([]segment.Directory, error) {
	rows, err := s.db.Query(ctx, s.sql.text("directories"), shard, from, to, most)
	if err != nil {
		return nil, fmt.Errorf("read directories: %w", err)
	}
	found, err := scanDirectories(rows)
	if err != nil {
		return nil, fmt.Errorf("read directories: %w", err)
	}
	return slices.DeleteFunc(found, func(d segment.Directory) bool { return d.End() <= from }), nil
}

func scanDirectories(rows pgx.Rows) ([]segment.Directory, error) {
	var found []segment.Directory
	var base message.Offset
	var count int
	var at time.Time
	var partitions, sizes pgtype.DriverBytes
	_, err := pgx.ForEachRow(rows, []any{&base, &count, &at, &partitions, &sizes}, func() error {
		d, err := segment.DecodeDirectory(base, count, partitions, sizes)
		if err != nil {
			return fmt.Errorf("segment %d: %w", base, err)
		}
		d.At = at.UnixMicro()
		found = append(found, d)
		return nil
	})
	return found, err
}

// SearchPartition returns the directories of up to limit segments of [from, to) that hold a message of the partition hash, in order, and the offset
// below which all were looked at. It reads 8 bytes of every message of the range, on the server.
func (s *Store) SearchPartition(ctx context.Context, shard message.ShardID, hash uint64, from, to message.Offset, limit int) ([]segment.Directory, message.Offset, error) {
	var wanted [8]byte
	binary.BigEndian.PutUint64(wanted[:], hash)
	rows, err := s.db.Query(ctx, s.sql.text("search_partition"), shard, from, to, wanted[:], limit)
	if err != nil {
		return nil, 0, fmt.Errorf("search partition: %w", err)
	}
	found, err := scanDirectories(rows)
	if err != nil {
		return nil, 0, fmt.Errorf("search partition: %w", err)
	}
	searched := to
	if len(found) == limit {
		searched = found[limit-1].End()
	}
	holds := func(d segment.Directory) bool {
		return d.End() > from && slices.Contains(d.Hashes[max(0, from-d.Base):], hash)
	}
	return slices.DeleteFunc(found, func(d segment.Directory) bool { return !holds(d) }), searched, nil
}

// Bodies returns the segments that begin at these offsets, in the order given, decrypted; what was trimmed is left out. The error matches ErrKeyMissing if
// the key of one is not to be had.
func (s *Store) Bodies(ctx context.Context, shard message.ShardID, bases []message.Offset) ([]Segment, error) {
	offsets := make([]int64, len(bases))
	for i, base := range bases {
		offsets[i] = int64(base)
	}
	return s.segments(ctx, s.db, shard, "bodies", offsets, shard)
}

// segments returns the whole segments of a shard that a statement finds, decrypted.
func (s *Store) segments(ctx context.Context, on querier, shard message.ShardID, statement string, args ...any) ([]Segment, error) {
	rows, err := on.Query(ctx, s.sql.text(statement), args...)
	if err != nil {
		return nil, fmt.Errorf("read bodies: %w", err)
	}
	found, err := pgx.CollectRows(rows, scanSegment)
	if err == nil {
		err = s.decrypt(ctx, on, shard, found)
	}
	if err != nil {
		return nil, fmt.Errorf("read bodies: %w", err)
	}
	return found, nil
}

func scanSegment(row pgx.CollectableRow) (seg Segment, err error) {
	var base message.Offset
	var count int
	if err := row.Scan(&base, &count, &seg.CreatedAt, &seg.flush, &seg.Codec, &seg.key, &seg.partitions, &seg.sizes, &seg.Body); err != nil {
		return seg, err
	}
	if seg.Directory, err = segment.DecodeDirectory(base, count, seg.partitions, seg.sizes); err != nil {
		return seg, fmt.Errorf("segment %d: %w", base, err)
	}
	seg.At = seg.CreatedAt.UnixMicro()
	return seg, nil
}

// decrypt opens the bodies of segments of a shard, and drops what was needed for it.
func (s *Store) decrypt(ctx context.Context, on querier, shard message.ShardID, found []Segment) error {
	var ids []int32
	for i := range found {
		if found[i].key != 0 {
			ids = append(ids, found[i].key)
		}
	}
	keys, err := s.dataKeys(ctx, on, ids)
	if err != nil {
		return err
	}
	for i := range found {
		seg := &found[i]
		if seg.key != 0 {
			at := seal.InSegment(shard, seg.flush, seg.Codec, seg.partitions, seg.sizes)
			if seg.Body, err = keys[seg.key].Open(at, seg.Body); err != nil {
				return fmt.Errorf("segment %d: %w", seg.Base, errors.Join(segment.ErrCorrupt, err))
			}
		}
		seg.partitions, seg.sizes = nil, nil
	}
	return nil
}
