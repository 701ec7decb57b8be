package store

import (
	"context"
	"maps"
)

// Statements are the hot statements by name, and the statement of a change for each part alone and for all together.
func Statements() map[string]string {
	b := readBook()
	work := newWorkBook(b)
	all := make(map[string]string)
	for _, name := range []string{
		"flush", "flush_one", "shard_states", "lock_shards", "find_flush", "find_keys", "put_keys", "trim_keys", "work_drop",
		"group_shard", "lock_group_shard", "chunks", "leases", "probe_leases", "retries", "directories", "search_partition", "bodies",
		"poll", "expired_leases", "delayed_put", "delayed_take", "delayed_next",
		"trim_shards", "trim_group_shards", "trim", "shard_tails", "peek_onward", "peek_back", "trace_dead_letters", "tombstones", "tombstone_put",
		"trace_events", "trace_put", "trim_traces",
		"find_flushes", "find_service_keys", "put_service_keys", "confirm_service_keys", "put_refused",
	} {
		all[name] = b.text(name)
	}
	for part := 1; part < partsEnd; part <<= 1 {
		all[partNames(part)[len(partNames(part))-1]] = work.text(part)
	}
	all["work with every part"] = work.text(partsEnd - 1)
	return maps.Clone(all)
}

// StatementArity returns how many parameters each combination of parts has; changes have as many arguments.
func StatementArity(parts int) int {
	b := readBook()
	n := 0
	for _, name := range partNames(parts) {
		n += len(b[name].params)
	}
	return n
}

// Unblock ends dispatchers' sessions that hold locks while they wait for their client.
func (s *Store) Unblock(ctx context.Context) (int, error) { return s.unblock(ctx) }

// Lose makes the store believe that a backend's connection broke in the middle of a write.
func (s *Store) Lose(pid uint32) { s.lose(pid) }
