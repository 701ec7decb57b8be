// Package segcache keeps directories and bodies of recent segments in memory, shared by all groups of a dispatcher.
//
// Segments are immutable, so an entry is right for as long as the database is the same one; nothing here is ever invalidated but by Clear. The two
// halves are bounded apart, in bytes: bodies are large and wanted once per group, directories are small and wanted by every cold view.
package segcache

import (
	"container/list"
	"sort"
	"sync"
	"time"

	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/segment"
)

// entryOverhead is what an entry costs beside its bytes.
const entryOverhead = 192

// bytesPerMessage is what a directory costs a message.
const bytesPerMessage = 12

// Cache is safe for concurrent use.
type Cache struct {
	directories half[segment.Directory]
	bodies      half[*Body]
}

// Body is the body of one segment. It is opened (decompressed) when first asked for.
type Body struct {
	Directory segment.Directory
	At        time.Time // when it was committed, by the database's clock

	codec  segment.Codec
	stored []byte
	once   sync.Once
	opened segment.Body
	err    error
}

// NewBody returns a body as it is stored.
func NewBody(d segment.Directory, at time.Time, codec segment.Codec, stored []byte) *Body {
	return &Body{Directory: d, At: at, codec: codec, stored: stored}
}

// Open returns the frames. Concurrent calls share one decompression.
func (b *Body) Open(dec *segment.Decoder) (segment.Body, error) {
	b.once.Do(func() {
		b.opened, b.err = dec.Body(b.Directory, b.codec, b.stored)
		b.stored = nil
	})
	return b.opened, b.err
}

// bytes is what the body takes once it is opened.
func (b *Body) bytes() int64 {
	n := int64(len(b.Directory.Sizes)) * (bytesPerMessage + 4)
	for _, size := range b.Directory.Sizes {
		n += int64(size)
	}
	return n
}

// New returns an empty cache of at most the given bytes.
func New(directoryBytes, bodyBytes int64) *Cache {
	c := &Cache{}
	c.directories.init(directoryBytes)
	c.bodies.init(bodyBytes)
	return c
}

// PutDirectory remembers a directory.
func (c *Cache) PutDirectory(shard message.ShardID, d segment.Directory) {
	c.directories.put(shard, d.Base, d.End(), entryOverhead+int64(d.Len())*bytesPerMessage, d)
}

// Directory returns the directory of the segment that holds the offset.
func (c *Cache) Directory(shard message.ShardID, at message.Offset) (segment.Directory, bool) {
	return c.directories.get(shard, at)
}

// PutBody remembers a body.
func (c *Cache) PutBody(shard message.ShardID, b *Body) {
	c.bodies.put(shard, b.Directory.Base, b.Directory.End(), entryOverhead+b.bytes(), b)
}

// Body returns the body of the segment that holds the offset.
func (c *Cache) Body(shard message.ShardID, at message.Offset) (*Body, bool) {
	return c.bodies.get(shard, at)
}

// Clear forgets everything: the database is another one.
func (c *Cache) Clear() {
	c.directories.clear()
	c.bodies.clear()
}

// Bytes returns what the two halves hold now.
func (c *Cache) Bytes() (directories, bodies int64) {
	return c.directories.size(), c.bodies.size()
}

// half is a map of disjoint offset ranges by shard with one LRU over all.
type half[V any] struct {
	mu     sync.Mutex // guards all below
	limit  int64
	bytes  int64
	lru    *list.List // front: used last; values are *entry[V]
	shards map[message.ShardID]*ranges[V]
}

type entry[V any] struct {
	shard     message.ShardID
	base, end message.Offset
	bytes     int64
	value     V
	place     *list.Element
}

// ranges is sorted by base; entries do not overlap.
type ranges[V any] struct{ sorted []*entry[V] }

func (h *half[V]) init(limit int64) {
	h.limit, h.lru, h.shards = limit, list.New(), map[message.ShardID]*ranges[V]{}
}

func (h *half[V]) put(shard message.ShardID, base, end message.Offset, bytes int64, v V) {
	if bytes > h.limit || base >= end {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.shards[shard]
	if r == nil {
		r = &ranges[V]{}
		h.shards[shard] = r
	}
	i := r.search(base)
	if i < len(r.sorted) && r.sorted[i].base == base {
		h.lru.MoveToFront(r.sorted[i].place)
		return // immutable, so it is the same
	}
	e := &entry[V]{shard: shard, base: base, end: end, bytes: bytes, value: v}
	e.place = h.lru.PushFront(e)
	r.insert(i, e)
	h.bytes += bytes
	for h.bytes > h.limit {
		h.remove(h.lru.Back().Value.(*entry[V])) //nolint:forcetypeassert // the list holds nothing else
	}
}

func (h *half[V]) get(shard message.ShardID, at message.Offset) (v V, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.shards[shard]
	if r == nil {
		return v, false
	}
	i := r.search(at+1) - 1
	if i < 0 || r.sorted[i].end <= at {
		return v, false
	}
	h.lru.MoveToFront(r.sorted[i].place)
	return r.sorted[i].value, true
}

// remove needs h.mu.
func (h *half[V]) remove(e *entry[V]) {
	h.lru.Remove(e.place)
	h.bytes -= e.bytes
	r := h.shards[e.shard]
	r.remove(r.search(e.base))
	if len(r.sorted) == 0 {
		delete(h.shards, e.shard)
	}
}

func (h *half[V]) clear() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.bytes = 0
	h.lru.Init()
	clear(h.shards)
}

func (h *half[V]) size() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.bytes
}

// search returns the first index whose base is at or after the offset. Logs are appended to, so the end is looked at first.
func (r *ranges[V]) search(at message.Offset) int {
	n := len(r.sorted)
	if n == 0 || r.sorted[n-1].base < at {
		return n
	}
	return sort.Search(n, func(i int) bool { return r.sorted[i].base >= at })
}

func (r *ranges[V]) insert(i int, e *entry[V]) {
	r.sorted = append(r.sorted, nil)
	copy(r.sorted[i+1:], r.sorted[i:])
	r.sorted[i] = e
}

// remove is cheap at the front, where the oldest are.
func (r *ranges[V]) remove(i int) {
	if i == 0 {
		r.sorted[0] = nil
		r.sorted = r.sorted[1:]
		return
	}
	copy(r.sorted[i:], r.sorted[i+1:])
	r.sorted[len(r.sorted)-1] = nil
	r.sorted = r.sorted[:len(r.sorted)-1]
}
