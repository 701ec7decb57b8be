// Package config turns environment variables into a service's Config and tells people which variables there are.
//
// A Config is a plain struct whose defaults are in code. A field tagged `env:"LEASE_TTL" doc:"..."` of the service "dispatcher" is read from
// POSTRIDER_DISPATCHER_LEASE_TTL, else from POSTRIDER_LEASE_TTL, else it keeps its default; an empty variable counts as unset. A Secret field may
// also come from the file named by the variable with _FILE appended. A variable that begins with the service's own prefix and belongs to no
// field is an error, since it is a typing mistake that would otherwise be found in production. POSTRIDER_<SERVICE>_ADDR and _ADDRS are let through:
// set for a whole host, they tell the other services where this one is.
//
// The environment is an argument everywhere: nothing here reads the process's own.
package config
