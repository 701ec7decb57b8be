// Package redistest gives a test a Redis: a real server that can be stopped, frozen and brought back (Start), or an in-process imitation (Mini).
//
// Every contract is tested on both, because the imitation is what a single process embeds and the real one is what production runs. Without redis-server
// the test fails; it is never skipped.
package redistest
