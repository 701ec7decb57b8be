// Package placement says in which shard of a queue a partition lives and by which number it is blocked.
package placement

import "github.com/cespare/xxhash/v2"

// V1 is the placement of queues that are not encrypted: xxhash64(partition) modulo the number of shards. The queue row keeps the version, because a
// partition must never move.
const V1 = 1

// V2 is that of encrypted queues: the same with a hash that is keyed with a secret of the queue (seal.Names), so that directories leak no names.
const V2 = 2

// Hash is the 64-bit name of a partition under V1: what directories hold and leases block by. Two names with one hash block each other and
// are never reordered; names are compared in the frame.
func Hash(partition string) uint64 { return xxhash.Sum64String(partition) }

// Shard is the index, in 0..shards-1, of the shard the partition with this hash lives in. shards MUST be at least 1.
func Shard(hash uint64, shards int) int { return int(hash % uint64(shards)) }
