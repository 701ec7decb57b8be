package engine

import (
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/window"
	"postrider.dev/services/dispatcher/internal/engine/catalog"
	"postrider.dev/services/dispatcher/internal/store"
)

// A group is watched by the poller while pops wait on it.

func (g *group) belongs() *catalog.Queue { return g.rows.Load().queue }

func (g *group) pace() *pollState { return &g.poll }

func (g *group) wanted() bool { return g.hasParked() }

func (g *group) known(q *question) {
	for _, s := range g.shards {
		q.shard(s.shard)
		q.versions[s.id] = window.Version(s.version.Load())
	}
}

func (g *group) found(q *question, heads map[message.ShardID]store.Head, versions map[window.GroupShardID]window.Version) (news bool) {
	for _, s := range g.shards {
		fresh := q.news(s.shard, heads)
		version, there := versions[s.id]
		if s.suspect(version, there) || fresh {
			news = true
			s.wake()
		}
	}
	return news
}
