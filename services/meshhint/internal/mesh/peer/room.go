package peer

import (
	"bufio"
	"container/list"
	"net"
	"sync"
)

const (
	// maxStrangers bounds the connections whose handshake is not done.
	maxStrangers = 64
	// maxPeers bounds those whose handshake is.
	maxPeers = 256
	// readBytes is the read buffer of a peer.
	readBytes = 16 << 10
)

// room bounds the connections that are open. One stranger too many pushes out the one who has been at the door for longest: an honest peer needs it for
// a moment only, so whoever holds it with a thousand connections keeps nobody out. A peer that comes again takes the place of its former connection.
type room struct {
	mu        sync.Mutex // guards all below
	strangers *list.List // of net.Conn, the oldest first
	places    map[net.Conn]*list.Element
	peers     map[string]net.Conn // by server id
}

func newRoom() *room {
	return &room{strangers: list.New(), places: make(map[net.Conn]*list.Element), peers: make(map[string]net.Conn)}
}

// enter adds a stranger. pushedOut says that the oldest had to go for it.
func (r *room) enter(conn net.Conn) (pushedOut bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.strangers.Len() >= maxStrangers {
		oldest := r.strangers.Front()
		if old, ok := r.strangers.Remove(oldest).(net.Conn); ok {
			delete(r.places, old)
			_ = old.Close()
		}
		pushedOut = true
	}
	r.places[conn] = r.strangers.PushBack(conn)
	return pushedOut
}

// leave removes a stranger. It reports false for one that was pushed out.
func (r *room) leave(conn net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.leaveLocked(conn)
}

func (r *room) leaveLocked(conn net.Conn) bool {
	place, ok := r.places[conn]
	if ok {
		r.strangers.Remove(place)
		delete(r.places, conn)
	}
	return ok
}

// sit makes a stranger a peer. It reports false where there is no place left.
func (r *room) sit(conn net.Conn, serverID string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.leaveLocked(conn) {
		return true // pushed out meanwhile: its connection is closed, the first read tells
	}
	former, again := r.peers[serverID]
	if !again && len(r.peers) >= maxPeers {
		return false
	}
	if again {
		_ = former.Close()
	}
	r.peers[serverID] = conn
	return true
}

// rise removes a peer, unless another connection of it has taken the place.
func (r *room) rise(conn net.Conn, serverID string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.peers[serverID] == conn {
		delete(r.peers, serverID)
	}
}

func (r *room) peersLen() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.peers)
}

func newBuffered(conn net.Conn) *bufio.Reader { return bufio.NewReaderSize(conn, readBytes) }
