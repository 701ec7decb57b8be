package localpg

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// Options of a server. The zero value of each is usable, but Dir.
type Options struct {
	// Dir holds the cluster, in the subfolder "data", and the server's log.
	Dir string
	// Binaries; found by Find when empty.
	Binaries Binaries
	// Durable keeps fsync on: what is committed survives a machine crash. Off, only a crash of the server is survived.
	Durable bool
	// TCP also listens on 127.0.0.1, with a random password, at a free port.
	TCP bool
	// MaxConnections; 100 when 0.
	MaxConnections int
	// SharedBuffers, as PostgreSQL writes it; "64MB" when empty.
	SharedBuffers string
	// Enter is child.Spec's: where the server runs.
	Enter func() error
	// Settings are further server settings; they win over the ones above.
	Settings map[string]string
}

// arguments are the server's settings as "-c name=value", sorted.
func (o Options) arguments(socketDir string, port int) []string {
	settings := map[string]string{ //nolint:gosec // names a way of hashing passwords, none of them
		"port":                        strconv.Itoa(port),
		"listen_addresses":            "",
		"unix_socket_directories":     socketDir,
		"unix_socket_permissions":     "0700",
		"max_connections":             strconv.Itoa(max(o.MaxConnections, 0)),
		"shared_buffers":              o.SharedBuffers,
		"max_wal_size":                "1GB",
		"min_wal_size":                "80MB",
		"wal_level":                   "replica",
		"max_wal_senders":             "2",
		"jit":                         "off",
		"timezone":                    "UTC",
		"log_timezone":                "UTC",
		"lc_messages":                 "C",
		"logging_collector":           "off",
		"log_destination":             "stderr",
		"log_line_prefix":             "%m [%p] %u@%d ",
		"log_checkpoints":             "off",
		"log_autovacuum_min_duration": "-1",
		"password_encryption":         "scram-sha-256",
	}
	if o.MaxConnections == 0 {
		settings["max_connections"] = "100"
	}
	if o.SharedBuffers == "" {
		settings["shared_buffers"] = "64MB"
	}
	if o.TCP {
		settings["listen_addresses"] = "127.0.0.1"
	}
	if !o.Durable {
		settings["fsync"] = "off"
		settings["full_page_writes"] = "off"
	}
	maps.Copy(settings, o.Settings)
	var args []string
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "-c", fmt.Sprintf("%s=%s", name, settings[name]))
	}
	return args
}
