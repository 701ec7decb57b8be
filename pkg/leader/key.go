package leader

import "hash/fnv"

// LockKey names an advisory lock. The lock's number is made of the name, so names are the only registry there is: equal names contend, different names do
// not (64 bits). Advisory locks are per database.
type LockKey string

// ID is the lock's number.
func (k LockKey) ID() int64 {
	h := fnv.New64a()
	h.Write([]byte("leader:" + string(k))) // a hash never fails
	return int64(h.Sum64())                // any 64 bits are a key
}
