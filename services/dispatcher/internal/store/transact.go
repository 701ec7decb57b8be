package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"postrider.dev/pkg/idempotency"
	"postrider.dev/pkg/pg"
	"postrider.dev/services/dispatcher/internal/domain/window"
)

// TransactWindow is how long the answer of a transaction is remembered. It is shorter than that of control requests because there are many more.
const TransactWindow = time.Hour

// Transaction is what is changed and appended together.
type Transaction struct {
	// Request MUST have a key: by its row a transaction of which nobody knows whether it was committed is found, and none is done twice.
	Request idempotency.Request
	Works   []Worked // each group-shard once, at most MaxWork
	Appends []KeyedAppend
}

// Worked is a group-shard that a transaction changes, and what the caller knows of it.
type Worked struct {
	ID    window.GroupShardID
	Known window.Known
}

// Standing is what holds while every row of a transaction is locked.
type Standing struct {
	States []State    // of Works
	Gone   []bool     // of Works: there is no such row
	Shards []Appended // of Appends: StatusNothing with the head where the shard takes an append, else why not

	appends []KeyedAppend
	at      lockedKeys
}

// Locked is the shard of the i-th append.
func (st *Standing) Locked(i int) Locked {
	return Locked{Base: st.Shards[i].Base, Kept: st.Shards[i].Kept, Now: st.at.now}
}

// Keys answers the keys of the i-th append.
func (st *Standing) Keys(i int) []KeyState { return statesOf(&st.appends[i], st.at.keys, st.at.now) }

// Judged is what a transaction writes.
type Judged struct {
	Changes []window.Change // of the group-shards that change, planned from the states of the Standing
	Rests   []Remainder     // of Appends
	Answer  []byte          // kept with the request
}

// Judge decides under the locks. It MUST NOT wait for anything and may run twice. An error of it is returned, and nothing is written.
type Judge func(*Standing) (Judged, error)

// TrimTransactions forgets up to most transactions that are older than TransactWindow, and returns how many. method is that of their requests.
func (c *Control) TrimTransactions(ctx context.Context, method string, most int) (int, error) {
	tag, err := c.s.db.Exec(ctx, c.s.sql.text("request_trim_method"), TransactWindow, method, most)
	if err != nil {
		return 0, fmt.Errorf("trim keys of transactions: %w", err)
	}
	return int(tag.RowsAffected()), nil
}

// Transacted is what became of a transaction.
type Transacted struct {
	// Replayed says that the request was done before: Answer is the first one's, and nothing else is set.
	Replayed bool
	Answer   []byte

	Works    []WorkResult // of Judged.Changes; all are applied
	Appended []Appended   // of Appends
}

// errNotYet is a fault of the caller: what waits for an instant cannot be part of a transaction.
var errNotYet = errors.New("a change of a transaction waits for its time")

// Transact changes group-shards and appends to shards in one transaction, three round trips: all of it, or nothing where it returns an error, unless
// pg.IsOutcomeUnknown. Then it is called again, with the same request: if it was committed the answer is replayed. The error matches idempotency.ErrReused if
// the key was used for another request, and idempotency.ErrInUse if another one under the key is running.
//
// Locks are taken in the order of all writers: group-shards by id, shards by id; what follows is inserted.
func (s *Store) Transact(ctx context.Context, t Transaction, judge Judge) (Transacted, error) {
	if err := checkTransaction(&t); err != nil {
		return Transacted{}, fmt.Errorf("transact: %w", err)
	}
	if err := s.endLost(ctx); err != nil {
		return Transacted{}, fmt.Errorf("transact: %w", err)
	}
	var out Transacted
	run := func(conn *pgxpool.Conn) (err error) {
		out, err = s.transact(ctx, conn, &t, judge)
		return err
	}
	err := s.write(ctx, run)
	if errors.Is(err, errUnknownHead) { // deleted, or the database was restored to an earlier state
		t.Appends = unknownHeads(t.Appends)
		t.Works = slices.Clone(t.Works)
		for i := range t.Works {
			t.Works[i].Known = window.Known{}
		}
		err = s.write(ctx, run)
	}
	if err != nil {
		return Transacted{}, fmt.Errorf("transact: %w", err)
	}
	return out, nil
}

var errNoRequestKey = errors.New("a transaction without a key")

func checkTransaction(t *Transaction) error {
	seen := make(map[window.GroupShardID]struct{}, len(t.Works))
	for _, w := range t.Works {
		if _, twice := seen[w.ID]; twice {
			return fmt.Errorf("group-shard %d: %w", w.ID, errRepeatedChange)
		}
		seen[w.ID] = struct{}{}
	}
	switch {
	case !t.Request.Keyed():
		return errNoRequestKey
	case len(t.Works) > MaxWork:
		return errTooMuchWork
	}
	return checkKeyed(t.Appends)
}

func (s *Store) transact(ctx context.Context, conn *pgxpool.Conn, t *Transaction, judge Judge) (Transacted, error) {
	st := &Standing{
		States: make([]State, len(t.Works)), Gone: make([]bool, len(t.Works)), Shards: make([]Appended, len(t.Appends)),
		appends: t.Appends, at: lockedKeys{keys: map[KeyID]foundKey{}},
	}
	answer, replayed, err := s.lockWorks(ctx, conn, t, st)
	if err != nil {
		return Transacted{}, err
	}
	if replayed {
		if _, err := conn.Exec(ctx, "rollback"); err != nil {
			return Transacted{}, fmt.Errorf("rollback: %w", err)
		}
		return Transacted{Replayed: true, Answer: answer}, nil
	}
	if err := s.readStanding(ctx, conn, t, st); err != nil {
		return Transacted{}, err
	}
	judged, err := judge(st)
	if err != nil {
		return Transacted{}, err
	}
	return s.commitTransaction(ctx, conn, t, st, &judged)
}

// lockWorks begins: it claims the request's key, looks for its answer, and locks the group-shards.
func (s *Store) lockWorks(ctx context.Context, conn *pgxpool.Conn, t *Transaction, st *Standing) (answer []byte, replayed bool, err error) {
	order := make([]int, len(t.Works))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(t.Works[a].ID, t.Works[b].ID) })
	batch := &pgx.Batch{}
	batch.Queue("begin")
	req := &t.Request
	class, id := req.Lock()
	var alone bool
	var body []byte
	batch.Queue(s.sql.text("request_claim"), class, id).QueryRow(func(row pgx.Row) error { return row.Scan(&alone) })
	batch.Queue(s.sql.text("request_find"), string(req.Tenant), req.Method, req.Key, TransactWindow).QueryRow(func(row pgx.Row) error {
		var rest []DeadLetterID
		err := row.Scan(&body, &answer, &rest)
		if replayed = err == nil; pg.IsNoRows(err) {
			return nil
		}
		return err
	})
	for _, i := range order {
		batch.Queue(s.sql.text("lock_group_shard"), t.Works[i].ID, t.Works[i].Known.Version).QueryRow(func(row pgx.Row) error {
			err := st.States[i].scanRow(row)
			if st.Gone[i] = pg.IsNoRows(err); st.Gone[i] {
				return nil
			}
			return err
		})
	}
	if err := conn.SendBatch(ctx, batch).Close(); err != nil {
		return nil, false, fmt.Errorf("lock group-shards: %w", err)
	}
	switch {
	case !alone:
		return nil, false, idempotency.ErrInUse
	case replayed && string(body) != string(req.Body[:]):
		return nil, false, idempotency.ErrReused
	}
	return answer, replayed, nil
}

// readStanding reads what the locks of the group-shards guard, and locks the shards, which are wanted by everybody, last.
func (s *Store) readStanding(ctx context.Context, conn *pgxpool.Conn, t *Transaction, st *Standing) error {
	batch := &pgx.Batch{}
	for i := range t.Works {
		switch {
		case !st.Gone[i]:
			s.queueRest(batch, &st.States[i], t.Works[i].Known)
		case t.Works[i].Known.Version > 0:
			return errUnknownHead
		}
	}
	if len(t.Appends) > 0 {
		s.queueLocks(batch, t.Appends, st.Shards, &st.at)
	}
	if err := conn.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("lock shards: %w", err)
	}
	for i := range t.Appends {
		if st.Shards[i].Status == StatusGone && t.Appends[i].Known > 0 {
			return errUnknownHead
		}
	}
	return nil
}

// commitTransaction writes what was judged, the answer with it, and commits. Every condition of the statements was looked at under the lock.
func (s *Store) commitTransaction(ctx context.Context, conn *pgxpool.Conn, t *Transaction, st *Standing, judged *Judged) (Transacted, error) {
	out := Transacted{Answer: judged.Answer, Works: make([]WorkResult, len(judged.Changes)), Appended: st.Shards}
	for i := range judged.Changes {
		if err := checkChange(&judged.Changes[i]); err != nil {
			return out, err
		}
		if judged.Changes[i].NotBefore != 0 {
			return out, errNotYet
		}
	}
	writes, err := gatherKeyed(t.Appends, st.Shards, st.at, func(i int, _ Locked, _ []KeyState) (Remainder, error) { return judged.Rests[i], nil })
	if err != nil {
		return out, err
	}
	err = s.commitKeyed(ctx, conn, writes, out.Appended, func(batch *pgx.Batch) {
		for i := range judged.Changes {
			s.queueChange(batch, &judged.Changes[i], &out.Works[i])
		}
		req := &t.Request
		batch.Queue(s.sql.text("request_put"), string(req.Tenant), req.Method, req.Key, req.Body[:], notNil(judged.Answer), []DeadLetterID(nil))
	})
	return out, err
}

// Answered returns the answer of a request that was done. Sessions this process lost sight of are ended first: what it was about is done by now or never.
func (s *Store) Answered(ctx context.Context, req idempotency.Request) (answer []byte, found bool, err error) {
	if err := s.endLost(ctx); err != nil {
		return nil, false, fmt.Errorf("find idempotency key: %w", err)
	}
	var body []byte
	var rest []DeadLetterID
	err = s.db.QueryRow(ctx, s.sql.text("request_find"), string(req.Tenant), req.Method, req.Key, TransactWindow).Scan(&body, &answer, &rest)
	switch {
	case pg.IsNoRows(err):
		return nil, false, nil
	case err != nil:
		return nil, false, fmt.Errorf("find idempotency key: %w", err)
	case string(body) != string(req.Body[:]):
		return nil, false, idempotency.ErrReused
	}
	return answer, true, nil
}
