package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/window"
)

// pollAllFrom is how many rows asked for make one walk over both tables the cheaper way.
const pollAllFrom = 8192

// Head is where a shard ends.
type Head struct {
	Head          message.Offset // the next offset
	ConfigVersion int64          // of the queue
}

// Poll tells where shards end and which version group-shards have, in one query. The arguments carry what is known already; a row that is gone is left out of
// the answer.
func (s *Store) Poll(
	ctx context.Context, shards map[message.ShardID]message.Offset, groupShards map[window.GroupShardID]window.Version,
) (map[message.ShardID]Head, map[window.GroupShardID]window.Version, error) {
	heads := make(map[message.ShardID]Head, len(shards))
	versions := make(map[window.GroupShardID]window.Version, len(groupShards))
	if len(shards)+len(groupShards) == 0 {
		return heads, versions, nil
	}
	rows, err := s.poll(ctx, shards, groupShards)
	if err != nil {
		return nil, nil, fmt.Errorf("poll: %w", err)
	}
	var work bool
	var id, number, config int64
	_, err = pgx.ForEachRow(rows, []any{&work, &id, &number, &config}, func() error {
		if work {
			if _, asked := groupShards[window.GroupShardID(id)]; asked {
				versions[window.GroupShardID(id)] = window.Version(number)
			}
		} else if _, asked := shards[message.ShardID(id)]; asked {
			heads[message.ShardID(id)] = Head{Head: message.Offset(number), ConfigVersion: config}
		}
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("poll: %w", err)
	}
	return heads, versions, nil
}

func (s *Store) poll(ctx context.Context, shards map[message.ShardID]message.Offset, groupShards map[window.GroupShardID]window.Version) (pgx.Rows, error) {
	if len(shards)+len(groupShards) >= pollAllFrom {
		return s.db.Query(ctx, s.sql.text("poll_all"))
	}
	shardIDs, heads := make([]int64, 0, len(shards)), make([]int64, 0, len(shards))
	for id, head := range shards {
		shardIDs, heads = append(shardIDs, int64(id)), append(heads, int64(head))
	}
	workIDs, versions := make([]int64, 0, len(groupShards)), make([]int64, 0, len(groupShards))
	for id, version := range groupShards {
		workIDs, versions = append(workIDs, int64(id)), append(versions, int64(version))
	}
	return s.db.Query(ctx, s.sql.text("poll"), shardIDs, heads, workIDs, versions)
}
