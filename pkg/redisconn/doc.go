// Package redisconn talks to a Redis that carries hints: what is lost costs time, never truth.
//
// So nothing here waits long for Redis. Open does not need it to be there; Client.Publish gives up after a short bound; a Subscriber comes back by
// itself, with jitter, and says so each time, because whatever was published in between is gone: OnSubscribed means "everything may have
// changed". A subscription that died silently (the peer vanished, a firewall forgot the connection) is found by pings.
package redisconn
