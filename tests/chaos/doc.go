// Package chaos breaks a fleet of real processes on purpose while producers and consumers use it, and checks what they saw.
//
// Faults come from a plan that a seed decides (Plan), so that a run that found something is run again. They stop and kill every service, restart and
// freeze PostgreSQL, fill the disk of a spool while it is away, restart Redis, and slow and cut the network between the hosts. The clients record a history; the checkers of package invariant
// look at it when the fleet is whole again and everything is consumed.
//
//	make chaos                     two minutes, a seed of the day
//	make chaos CHAOS=10m SEED=7    longer, and again with the faults of a run before
//
// A run proves something only if enough happened in it: see Report.Counts.
package chaos
