package chaos

import (
	"math/rand/v2"
	"time"
)

// Kind is a sort of fault.
type Kind string

// The kinds. Those of a service strike one of its processes; the others what all share.
const (
	KillIngress      Kind = "ingress killed"
	KillDispatcher   Kind = "dispatcher killed"
	KillSidecar      Kind = "sidecar killed"
	KillScheduler    Kind = "scheduler killed"
	KillAudit        Kind = "audit killed"
	FreezeIngress    Kind = "ingress stopped"    // SIGSTOP, then SIGCONT
	FreezeDispatcher Kind = "dispatcher stopped" // past the consumers' leases
	FreezeSidecar    Kind = "sidecar stopped"
	DrainDispatcher  Kind = "dispatcher drained" // SIGTERM, then started again
	DrainIngress     Kind = "ingress drained"
	CrashPostgres    Kind = "postgres restarted" // -9, crash recovery
	PostgresAway     Kind = "postgres away"
	FreezePostgres   Kind = "postgres stopped"
	RedisAway        Kind = "redis away" // and empty when it returns
	SlowNetwork      Kind = "network slow"
	CutNetwork       Kind = "network cut"
	CutMesh          Kind = "mesh cut"          // and nothing else of the network
	FillDisk         Kind = "spool's disk full" // while postgres is away, and a while longer
)

// span is how long a kind of fault lasts.
type span struct{ least, most time.Duration }

// kinds are all the kinds with their spans. A killed process is away for as long before it is started again.
func kinds() map[Kind]span {
	return map[Kind]span{
		KillIngress: {0, time.Second}, KillDispatcher: {0, time.Second}, KillSidecar: {0, time.Second}, KillScheduler: {0, time.Second}, KillAudit: {0, time.Second},
		FreezeIngress: {time.Second, 4 * time.Second}, FreezeDispatcher: {time.Second, 4 * time.Second}, FreezeSidecar: {time.Second, 7 * time.Second},
		DrainDispatcher: {0, time.Second}, DrainIngress: {0, time.Second},
		CrashPostgres: {0, 0}, PostgresAway: {3 * time.Second, 10 * time.Second}, FreezePostgres: {time.Second, 3 * time.Second},
		RedisAway: {0, 3 * time.Second}, SlowNetwork: {2 * time.Second, 5 * time.Second}, CutNetwork: {500 * time.Millisecond, 3 * time.Second},
		CutMesh:  {0, 7 * time.Second},
		FillDisk: {2 * time.Second, 4 * time.Second},
	}
}

// order lists the kinds, the same in every run.
func order() []Kind {
	return []Kind{
		KillIngress, KillDispatcher, KillSidecar, KillScheduler, KillAudit, FreezeIngress, FreezeDispatcher, FreezeSidecar, DrainDispatcher, DrainIngress,
		CrashPostgres, PostgresAway, FreezePostgres, RedisAway, SlowNetwork, CutNetwork, CutMesh, FillDisk,
	}
}

// Fault is one thing that goes wrong: when, on which host (of those the kind strikes), for how long.
type Fault struct {
	At   time.Duration
	Kind Kind
	Host int
	For  time.Duration
}

// pace is the mean time between the beginnings of two faults. They may overlap.
const pace = 1800 * time.Millisecond

// Plan returns the faults of a run of the given length on some hosts: the same for the same arguments. Kinds come in rounds, each kind once a round,
// so that a short run sees many and a long one all alike.
func Plan(seed uint64, length time.Duration, hosts int) []Fault {
	draw := rand.New(rand.NewPCG(seed, 0)) // the point is to draw the same again
	spans := kinds()
	var faults []Fault
	var round []Kind
	for at := pace; at < length; at += pace/2 + time.Duration(draw.Int64N(int64(pace))) {
		if len(round) == 0 {
			round = order()
			draw.Shuffle(len(round), func(i, j int) { round[i], round[j] = round[j], round[i] })
		}
		s := spans[round[0]]
		faults = append(faults, Fault{At: at, Kind: round[0], Host: draw.IntN(hosts), For: s.least + time.Duration(draw.Int64N(int64(s.most-s.least)+1))})
		round = round[1:]
	}
	return faults
}
