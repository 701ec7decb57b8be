package peer

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"

	"postrider.dev/services/meshhint/internal/mesh/handshake"
)

// Sides of a connection, as failures are counted.
const (
	dialled  = "dialled"
	accepted = "accepted"
)

// Reasons why a handshake failed.
const (
	reasonSecret    = "secret"    // it does not share the secret
	reasonMalformed = "malformed" // it does not speak the mesh
	reasonVersion   = "version"
	reasonTLS       = "tls"
	reasonTimeout   = "timeout" // it did not finish in time
	reasonCrowded   = "crowded" // too many were at it at once, and it was the oldest
	reasonFull      = "full"    // as many peers as there may be are connected
	reasonCutOff    = "cut_off" // the connection broke in the middle
	reasonRefused   = "refused" // a dialled peer ended it before it answered: most likely it has another secret
	reasonNone      = ""        // no failure: who came left without a word, as a probe of a balancer does
)

// reasonOf names the failure of a handshake.
func reasonOf(side string, err error) string {
	var overTLS *tlsError
	var network net.Error
	switch {
	case errors.Is(err, handshake.ErrSecret):
		return reasonSecret
	case errors.Is(err, handshake.ErrMalformed):
		return reasonMalformed
	case errors.Is(err, handshake.ErrVersion):
		return reasonVersion
	case errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return reasonTimeout
	case errors.As(err, &overTLS):
		return reasonTLS
	case side == accepted && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)):
		return reasonNone
	case errors.Is(err, io.EOF):
		return reasonRefused
	}
	return reasonCutOff
}
