// Package server translates: requests into calls of the engine and of the store's cold side, and what these return into answers.
//
// Exchange takes the hot verbs of ingresses in batches, Queues is the control side of postrider.queue.v1, both on the internal listener. They trust the peer about who the caller is (the
// listener authenticated it) and about nothing else: every field is validated again. errors.go is the one place where errors of the domain become
// errors of the wire.
package server
