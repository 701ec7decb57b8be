package store

import (
	"strings"
	"sync/atomic"
	"time"

	"postrider.dev/services/dispatcher/internal/domain/window"
)

// The parts a change may have beside the compare-and-set; a statement is made for each combination that occurs.
const (
	partNotBefore = 1 << iota
	partChunkUpserts
	partChunkDeletes
	partLeaseInserts
	partLeaseUpdates
	partLeaseDeletes
	partRetryUpserts
	partRetryDeletes
	partDeadLetters
	partSought
	partReset
	partEvents
	partsEnd
)

// workBook makes and keeps the statements of changes.
type workBook struct {
	sql  book
	made *[partsEnd]atomic.Pointer[string]
}

func newWorkBook(sql book) workBook {
	return workBook{sql: sql, made: new([partsEnd]atomic.Pointer[string])}
}

// partNames returns the names of the blocks of a statement, in order.
func partNames(parts int) []string {
	names := []string{"work_cas"}
	if parts&partNotBefore != 0 {
		names[0] = "work_cas_not_before"
	}
	if parts&partSought != 0 { // and nothing of it was waited for
		names[0] = "work_cas_sought"
	}
	if parts&partReset != 0 {
		names = append(names, "work_reset")
	}
	for i, name := range []string{
		"work_chunk_upserts", "work_chunk_deletes", "work_lease_inserts", "work_lease_updates", "work_lease_deletes",
		"work_retry_upserts", "work_retry_deletes", "work_dead_letters",
	} {
		if parts&(partChunkUpserts<<i) != 0 {
			names = append(names, name)
		}
	}
	if parts&partEvents != 0 {
		names = append(names, "work_events")
	}
	return names
}

// text returns the statement for a combination of parts. Its parameters are those of the parts, in order: changeArgs.
func (w workBook) text(parts int) string {
	if made := w.made[parts].Load(); made != nil {
		return *made
	}
	var blocks []string
	for _, name := range partNames(parts) {
		w.sql.text(name) // is there
		blocks = append(blocks, w.sql[name].raw)
	}
	result := "work_result"
	if parts&partNotBefore != 0 && parts&partSought == 0 {
		result = "work_result_not_before"
	}
	w.sql.text(result) // is there
	text := number("WITH " + strings.Join(blocks, ",\n") + "\n" + w.sql[result].raw).text
	w.made[parts].Store(&text)
	return text
}

// statement returns what applies c, and its arguments.
func (w workBook) statement(c *window.Change) (string, []any) {
	if c.Drop {
		return w.sql.text("work_drop"), []any{c.ID, c.From, pairKey(c.ID, 0), pairKey(c.ID, lastOfPair)}
	}
	parts := partsOf(c)
	return w.text(parts), changeArgs(c)
}

func partsOf(c *window.Change) int {
	parts := 0
	for part, has := range map[int]bool{
		partNotBefore:    c.NotBefore != 0,
		partChunkUpserts: len(c.ChunkUpserts) > 0,
		partChunkDeletes: len(c.ChunkDeletes) > 0,
		partLeaseInserts: len(c.LeaseInserts) > 0,
		partLeaseUpdates: len(c.LeaseUpdates) > 0,
		partLeaseDeletes: len(c.LeaseDeletes) > 0,
		partRetryUpserts: len(c.RetryUpserts) > 0,
		partRetryDeletes: len(c.RetryDeletes) > 0,
		partDeadLetters:  len(c.DeadLetters) > 0,
		partSought:       c.Sought,
		partReset:        c.Reset,
		partEvents:       len(c.Events) > 0,
	} {
		if has {
			parts |= part
		}
	}
	return parts
}

// changeArgs returns the arguments of the statement for c, in the order of its parts.
func changeArgs(c *window.Change) []any {
	writesChunks := len(c.ChunkUpserts)+len(c.ChunkDeletes) > 0 || c.Reset
	writesRetries := len(c.RetryUpserts)+len(c.RetryDeletes) > 0 || c.Reset
	args := []any{
		c.To, int64(c.Hot.Chunk), c.Hot.Bits[:], c.Low, c.UnsettledBelow, c.LeaseLow,
		c.Losses.Messages, c.Losses.Untold, c.Losses.First, c.Active, writesChunks, writesRetries, c.ID, c.From,
	}
	if c.NotBefore != 0 {
		args = append(args, c.NotBefore.Time())
	}
	if c.Reset {
		args = append(args, pairKey(c.ID, 0), pairKey(c.ID, lastOfPair), chunkKeys(c))
	}
	args = appendChunkArgs(args, c)
	args = appendLeaseArgs(args, c)
	args = appendRetryArgs(args, c)
	args = appendDeadLetterArgs(args, c)
	return appendEventArgs(args, c)
}

func appendChunkArgs(args []any, c *window.Change) []any {
	if n := len(c.ChunkUpserts); n > 0 {
		encodings, data := make([]int16, n), make([][]byte, n)
		for i, u := range c.ChunkUpserts {
			encodings[i], data[i] = int16(u.Encoding), notNil(u.Data)
		}
		args = append(args, chunkKeys(c), encodings, data)
	}
	if n := len(c.ChunkDeletes); n > 0 {
		keys := make([][16]byte, n)
		for i, no := range c.ChunkDeletes {
			keys[i] = pairKey(c.ID, uint64(no))
		}
		args = append(args, keys)
	}
	return args
}

// chunkKeys are the keys of the chunk rows that c writes.
func chunkKeys(c *window.Change) [][16]byte {
	keys := make([][16]byte, len(c.ChunkUpserts))
	for i, u := range c.ChunkUpserts {
		keys[i] = pairKey(c.ID, uint64(u.No))
	}
	return keys
}

func appendLeaseArgs(args []any, c *window.Change) []any {
	if n := len(c.LeaseInserts); n > 0 {
		keys, ttls, holders, entries := make([][16]byte, n), make([]int64, n), make([]string, n), make([][]byte, n)
		for i, l := range c.LeaseInserts {
			keys[i], ttls[i], holders[i], entries[i] = pairKey(c.ID, uint64(l.Epoch)), micros(l.Lease), cleanText(l.Holder), notNil(l.Entries)
		}
		args = append(args, keys, ttls, holders, entries)
	}
	if n := len(c.LeaseUpdates); n > 0 {
		keys, ttls, entries := make([][16]byte, n), make([]int64, n), make([][]byte, n)
		for i, u := range c.LeaseUpdates {
			keys[i], ttls[i], entries[i] = pairKey(c.ID, uint64(u.Epoch)), micros(u.Extend), u.Entries
		}
		args = append(args, keys, ttls, entries)
	}
	if n := len(c.LeaseDeletes); n > 0 {
		keys := make([][16]byte, n)
		for i, epoch := range c.LeaseDeletes {
			keys[i] = pairKey(c.ID, uint64(epoch))
		}
		args = append(args, keys)
	}
	return args
}

func appendRetryArgs(args []any, c *window.Change) []any {
	if n := len(c.RetryUpserts); n > 0 {
		keys, hashes, failures, deliveries := make([][16]byte, n), make([]int64, n), make([]int32, n), make([]int32, n)
		afters, ats, alone, errs := make([]int64, n), make([]*time.Time, n), make([]int64, n), make([]string, n)
		for i, r := range c.RetryUpserts {
			keys[i], hashes[i] = pairKey(c.ID, uint64(r.Offset)), int64(r.PartitionHash)
			failures[i], deliveries[i] = int32(r.Failures), int32(r.Deliveries)
			afters[i], alone[i], errs[i] = micros(r.After), int64(r.AloneThrough), cleanText(r.LastError)
			if c.Private {
				errs[i] = "" // the reason of the last failure is sealed with the dead letter
			}
			if r.AvailableAt != 0 {
				at := r.AvailableAt.Time()
				ats[i] = &at
			}
		}
		args = append(args, keys, hashes, failures, deliveries, afters, ats, alone, errs)
	}
	if n := len(c.RetryDeletes); n > 0 {
		keys := make([][16]byte, n)
		for i, offset := range c.RetryDeletes {
			keys[i] = pairKey(c.ID, uint64(offset))
		}
		args = append(args, keys)
	}
	return args
}

func appendDeadLetterArgs(args []any, c *window.Change) []any {
	n := len(c.DeadLetters)
	if n == 0 {
		return args
	}
	ids, offsets, hashes := make([][16]byte, n), make([]int64, n), make([]int64, n)
	partitions, clients, types := make([]*string, n), make([]string, n), make([]string, n)
	headers, payloads, keys := make([][]byte, n), make([][]byte, n), make([]int32, n)
	deliveries, failures, reasons, errs := make([]int32, n), make([]int32, n), make([]string, n), make([]string, n)
	for i, d := range c.DeadLetters {
		ids[i], offsets[i], hashes[i] = d.ID, int64(d.Offset), int64(d.PartitionHash)
		deliveries[i], failures[i] = int32(d.Deliveries), int32(d.Failures)
		x := keptOf(&d, c)
		reasons[i], errs[i] = d.Reason.Code(), x.lastError
		partitions[i], clients[i], types[i] = x.partition, x.clientID, x.contentType
		headers[i], payloads[i], keys[i] = x.headers, x.payload, x.key
	}
	return append(args, ids, offsets, hashes, partitions, clients, types, headers, payloads, deliveries, failures, reasons, errs, keys)
}

func micros(d time.Duration) int64 { return int64(d / time.Microsecond) }
