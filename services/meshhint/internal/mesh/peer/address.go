// Package peer holds the two ends of the mesh's connections. A Sender dials one peer again and again and sends; the Listener accepts and receives. Between
// two sidecars there are two connections, each used one way, so none has to be chosen over the other.
package peer

import (
	"cmp"
	"net"
	"strconv"
	"strings"
)

// Address is where a peer listens.
type Address struct {
	Host string
	Port int
}

func (a Address) String() string { return net.JoinHostPort(a.Host, strconv.Itoa(a.Port)) }

// ParseAddress reads one entry of a list of peers: host or host:port, with or without http:// or https:// before it and white space around it. What is no
// port number is taken for the default port. ok is false where there is no host.
func ParseAddress(entry string, defaultPort int) (a Address, ok bool) {
	entry = strings.TrimSpace(entry)
	for _, scheme := range []string{"http://", "https://"} {
		if len(entry) >= len(scheme) && strings.EqualFold(entry[:len(scheme)], scheme) {
			entry = entry[len(scheme):]
			break
		}
	}
	entry, _, _ = strings.Cut(strings.TrimSpace(entry), "/")
	host, tail := entry, ""
	if strings.HasPrefix(entry, "[") || strings.Count(entry, ":") == 1 { // a bare IPv6 address has more than one and no port
		if end := strings.LastIndex(entry, ":"); end > strings.LastIndex(entry, "]") {
			host, tail = entry[:end], entry[end+1:]
		}
		host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	}
	a = Address{Host: strings.TrimSpace(host), Port: defaultPort}
	if port, err := strconv.ParseUint(strings.TrimSpace(tail), 10, 16); err == nil && port > 0 {
		a.Port = int(port)
	}
	return a, a.Host != ""
}

// ParseList reads a list of peers; entries without a host are left out, and each address is kept once.
func ParseList(entries []string, defaultPort int) []Address {
	var out []Address
	seen := make(map[Address]bool, len(entries))
	for _, entry := range entries {
		if a, ok := ParseAddress(entry, defaultPort); ok && !seen[a] {
			seen[a] = true
			out = append(out, a)
		}
	}
	return out
}

// Compare orders addresses by host and port.
func Compare(a, b Address) int {
	return cmp.Or(strings.Compare(a.Host, b.Host), cmp.Compare(a.Port, b.Port))
}
