// Package server translates: requests into calls of the engine and of the store's cold side, and what these return into answers.
//
// QueueService is postrider.queue.v1 as the dispatcher serves it to ingresses on its internal listener. It trusts the peer about who the caller is (the
// listener authenticated it) and about nothing else: every field is validated again. errors.go is the one place where errors of the domain become
// errors of the wire.
package server
