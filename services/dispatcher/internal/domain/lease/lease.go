// Package lease names the exclusive right to a set of messages: its epoch, and the token a client holds.
//
// The epoch is made of the version of the group-shard that granted the lease and an ordinal among the leases of that one change.
// Versions never repeat, so neither does an epoch: a token of a lost lease can never name a later one.
package lease

// GroupShardID names the state of one consumer group on one shard.
type GroupShardID int64

// Version counts the committed changes of a group-shard; every change adds one. 48 bits are kept in keys.
type Version int64

// MaxVersion is the last version a key can carry.
const MaxVersion Version = 1<<48 - 1

// MaxOrdinal is the last lease one change can grant.
const MaxOrdinal = 1<<16 - 1

// Epoch is version and ordinal in one comparable number; later grants have greater epochs.
type Epoch uint64

// MakeEpoch joins the granting version and the ordinal. The version MUST be in 0..MaxVersion.
func MakeEpoch(v Version, ordinal uint16) Epoch { return Epoch(uint64(v)<<16 | uint64(ordinal)) }

// Version is the version of the group-shard that granted the lease.
func (e Epoch) Version() Version { return Version(e >> 16) }

// Ordinal tells the leases of one change apart.
func (e Epoch) Ordinal() uint16 { return uint16(e & MaxOrdinal) }
