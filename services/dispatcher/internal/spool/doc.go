// Package spool is a log on this host's disk for what cannot be written to the database now. What Append reports as done survives the death of the process
// and of the machine, as long as the disk does.
//
// # On disk
//
//	LOCK              held while a process has the folder
//	mark              spool id, the last sequence number that was drained and the last that was acknowledged then; replaced whole
//	<sequence>.spool  a file of records, named by the first sequence number it may hold
//	mark.new         the place of the next mark, taken beforehand: a full disk does not keep the spool from noting what is drained, and so from getting emptier
//	*.record.damaged  one record that was whole and that nobody could use, set aside
//	*.damaged         a file in which acknowledged bytes could not be read, kept for people once its readable records are drained
//
// A file begins with a header: spool id, salt, its first sequence number, and the last sequence number that was acknowledged before. A record is a magic
// number, its length, its sequence number, the offset at which its batch begins, and a CRC32C over the salt, all of that, and the payload. The salt is
// never told to anybody, so no payload can be made to look like a record.
//
// # What holds
//
//   - Records that arrive together are written together, and one fsync covers them. None is reported before it. A file that is new is not relied upon
//     before its folder was fsynced too.
//   - The next batch is written only when the one before is fsynced. So a whole record whose batch begins behind a bad one proves that the bad one had
//     been acknowledged.
//   - After a failed fsync nobody knows what is on the disk: the file is never written again and the fsync is not repeated. The header of the next file
//     says which sequence numbers of the failed batch belong to nothing, and only when that is durable are they called not stored; else their fate is
//     ErrUncertain.
//   - Sequence numbers grow and are not used twice for records that were acknowledged. There may be gaps.
//   - The bytes on disk stay below Options.MaxBytes; what would pass it is ErrFull and nothing is stored.
//
// # Recovery
//
// Open reads every file. Behind what the next file's header, the mark, or a later batch proves to have been acknowledged, the first bad record is the torn
// end of a batch that nobody was told about: it is cut off and counted, and the file is not written to again. Before that point a bad record is damage:
// acknowledged bytes that the disk lost. Damage is logged as an error and counted, for as long as the file lies there; the records before and behind it are
// drained all the same, because skipping them would lose what can still be saved, and the file is kept when it is done. Damage inside the last batch of all,
// after a kill, cannot be told from a torn end.
//
// A Log whose mark cannot be read does not open: without it nobody knows which records were drained.
package spool
