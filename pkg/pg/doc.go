// Package pg opens PostgreSQL and says precisely what went wrong with it.
//
// It adds to pgx what every caller needs and few write twice: a pool with bounded waits that survives a starting server (Open), a transaction as a
// closure that may run twice (DB.InTx), error classes from SQLSTATEs (errors.go), a connection budget, a readiness check, pool metrics and
// a statement counter for tests.
//
// Three answers to a write must be told apart, and nothing here blurs them: it happened (nil), it did not (any other error), nobody knows
// (IsOutcomeUnknown: the connection was lost between sending COMMIT and hearing of it). Who gets the third MUST look before repeating.
package pg
