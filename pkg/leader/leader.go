package leader

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/fence"
)

// Config of an elector. Defaults fills what is zero.
type Config struct {
	// ProofEvery is the pace at which a leader looks whether it still holds the lock; 1 s.
	ProofEvery time.Duration
	// Trust is how long a proof is believed; its TTL must be longer than ProofEvery, 3 s less a margin of 500 ms.
	Trust fence.Window
	// CampaignEvery is the pace, jittered, at which a candidate tries; 250 ms.
	CampaignEvery time.Duration
	// ConnectTimeout bounds the making of the connection; 3 s.
	ConnectTimeout time.Duration
	// AppName is what pg_stat_activity shows.
	AppName string
	// OnChange, when set, is told of each take-over and step-down. It MUST NOT block.
	OnChange func(State)
}

func (c Config) withDefaults() Config {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{{&c.ProofEvery, time.Second}, {&c.CampaignEvery, 250 * time.Millisecond}, {&c.ConnectTimeout, 3 * time.Second}} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if c.Trust == (fence.Window{}) {
		c.Trust = fence.Window{TTL: 3 * time.Second, Margin: 500 * time.Millisecond}
	}
	return c
}

// Validate reports everything that would make an election pointless.
func (c Config) Validate() error {
	c = c.withDefaults()
	errs := []error{c.Trust.Validate()}
	if c.ProofEvery <= 0 || c.CampaignEvery <= 0 {
		errs = append(errs, errors.New("paces must be positive"))
	}
	if c.ProofEvery >= c.Trust.TTL-c.Trust.Margin {
		errs = append(errs, fmt.Errorf("a proof every %v cannot renew a trust of %v", c.ProofEvery, c.Trust.TTL-c.Trust.Margin))
	}
	return errors.Join(errs...)
}

// State is what an elector knows of itself.
type State struct {
	Leading bool        // holds the lock and believes it
	Epoch   fence.Epoch // of the present term, or of the last one
	Since   time.Time   // of the take-over, on this process's clock
	Changes int         // take-overs and step-downs so far
	Err     error       // what ended the last term or attempt
}

// Term is one time of being leader.
type Term struct {
	Epoch   fence.Epoch
	elector *Elector
}

// Trusted says whether the term is still believed at this moment. A leader asks before work that cannot carry the epoch.
func (t Term) Trusted() bool {
	s := t.elector.State()
	return s.Leading && s.Epoch == t.Epoch
}

// ErrLost is the cause of the end of a leader's context when the right to lead is gone or no longer certain.
var ErrLost = errors.New("leadership lost")

// Lead is the work of a leader. Its context ends when the term does; it MUST return soon after, and what it returns then does not matter. When it returns nil
// before that, say because the store refused its epoch, the leader resigns and becomes a candidate again; an error ends the elector.
type Lead func(ctx context.Context, term Term) error

// Elector runs for one role. One Run at a time.
type Elector struct {
	dsn    string
	key    LockKey
	table  string
	holder string
	clk    clock.Clock
	cfg    Config

	mu    sync.Mutex // guards what follows
	state State
	until time.Time // end of trust
}

// New returns an elector for the role that key names. dsn must lead to the server directly; table holds the epochs (see the package comment); holder is who
// we are, for people to read.
func New(dsn string, key LockKey, table, holder string, clk clock.Clock, cfg Config) *Elector {
	return &Elector{dsn: dsn, key: key, table: table, holder: holder, clk: clk, cfg: cfg.withDefaults()}
}

// State returns what is known now. Leading is false from the instant trust ends, even when nobody has noticed yet.
func (e *Elector) State() State {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.state
	s.Leading = s.Leading && e.clk.Now().Before(e.until)
	return s
}

// Run campaigns and leads until ctx ends, which is a clean end: the lock is free when Run returns. It returns the error of lead, and *PoolerError; a
// database that is away is waited for.
func (e *Elector) Run(ctx context.Context, lead Lead) error {
	if err := e.cfg.Validate(); err != nil {
		return fmt.Errorf("elector: %w", err)
	}
	for {
		err := e.candidacy(ctx, lead)
		if ctx.Err() != nil {
			return onlyFatal(err)
		}
		if onlyFatal(err) != nil {
			return err
		}
		e.note(err)
		if e.pause(ctx) != nil {
			return nil //nolint:nilerr // ctx ended, which is a clean end
		}
	}
}

// fatalError marks what ends Run; anything else is tried again.
type fatalError struct{ err error }

func (e *fatalError) Error() string { return e.err.Error() }

func (e *fatalError) Unwrap() error { return e.err }

// onlyFatal returns err's fatal part, nil without one.
func onlyFatal(err error) error {
	if fatal, ok := errors.AsType[*fatalError](err); ok {
		return fatal.err
	}
	return nil
}

// candidacy is the life of one connection: it campaigns on it, leads on it, and closes it, which frees the lock in any case.
func (e *Elector) candidacy(ctx context.Context, lead Lead) error {
	s, err := openSession(ctx, e)
	if err != nil {
		return err
	}
	defer s.close(ctx)
	for {
		held, err := s.tryLock(ctx)
		if err != nil {
			return err
		}
		if held {
			if err := e.term(ctx, s, lead); err != nil {
				return err
			}
		}
		if err := e.pause(ctx); err != nil {
			return err
		}
	}
}

func (e *Elector) pause(ctx context.Context) error {
	return e.clk.Sleep(ctx, e.cfg.CampaignEvery/2+rand.N(e.cfg.CampaignEvery)) //nolint:gosec // jitter needs no secret
}
