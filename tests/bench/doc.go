// Package bench measures Postrider through its API beside bare SQL on the same PostgreSQL, in one run.
//
// Every workload runs for a fixed time, several rounds, the rounds of all workloads interleaved, so that a slow minute of the machine falls on all
// of them; the table shows medians over the rounds. Callers are closed loops: each waits for its answer before it asks again. Everything is on one
// machine: client, services and PostgreSQL share its cores.
//
// Figures then compares the medians with the targets of the design. On a machine that cannot reach one, the ratio to bare SQL in the same rounds decides,
// against floors.json.
package bench
