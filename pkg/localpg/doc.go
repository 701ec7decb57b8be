// Package localpg runs a private PostgreSQL server: for development, for tests and for experiments that kill it.
//
// It promises:
//   - The server belongs to the process that started it. It listens on a Unix socket in a folder only the starting user can
//     enter, or, when asked, on 127.0.0.1 with a random password. It never touches a server installed on the machine.
//   - When the starting process dies, even by kill -9, the server stops cleanly (Linux), or is stopped by the next Start on the
//     same folder (elsewhere).
//   - A data folder is initialised completely or not at all, and belongs to one process at a time.
//
// Started by root, the server runs as an unprivileged user, because PostgreSQL refuses root; a data folder that user cannot
// reach (a private home, say) is replaced by one below /var/lib/localpg that it can, see Server.DataDir; what was wished below a temporary folder is
// removed from there once that folder is gone.
package localpg
