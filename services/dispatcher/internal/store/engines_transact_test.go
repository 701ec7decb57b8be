package store_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"

	"postrider.dev/pkg/idempotency"
	"postrider.dev/services/dispatcher/internal/domain/window"
	"postrider.dev/services/dispatcher/internal/domain/window/windowtest"
	"postrider.dev/services/dispatcher/internal/store"
)

var (
	errRefused = errors.New("one of it is refused, so all of it")
	errAgain   = errors.New("what was done is judged again")
)

// parties are the turns whose consumers have something to settle, each with that alone.
func (e *engine) parties(turns []*turn) []*turn {
	var parties []*turn
	for _, t := range turns {
		party := &turn{seat: t.seat}
		for _, c := range t.users {
			if len(c.open) == 0 {
				continue
			}
			epoch := c.epoch
			if e.rnd.IntN(100) == 0 { // by a lease that is not its own
				epoch -= 1 << 16
			}
			party.users = append(party.users, c)
			party.requests = append(party.requests, &window.Settle{Epoch: epoch, Items: e.verdicts(c, 1+e.rnd.IntN(len(c.open)))})
		}
		if idle := (&turn{seat: t.seat, users: without(t.users, party.users)}); len(idle.users) > 0 {
			idle.giveBack()
		}
		if len(party.users) > 0 {
			parties = append(parties, party)
		}
	}
	return parties
}

func without(all, some []*consumer) []*consumer {
	return slices.DeleteFunc(slices.Clone(all), func(c *consumer) bool { return slices.Contains(some, c) })
}

// joint is one transaction: what the parties settle, and what is pushed with it.
type joint struct {
	parties []*turn
	logs    []*arenaLog // of the pushes
	hashes  [][]uint64

	changes []window.Change // of the parties that change, by changed
	changed []*turn
}

// transact settles what all parties wish and pushes some messages, or does nothing of it. A repetition, through this engine's connections, does nothing
// more and has the same answer.
func (e *engine) transact(ctx context.Context, parties []*turn) error {
	j := &joint{parties: parties}
	for _, log := range e.arena.logs {
		if e.rnd.IntN(2) == 0 && e.arena.wants(log) {
			j.logs, j.hashes = append(j.logs, log), append(j.hashes, someHashes(e.rnd, 5))
		}
	}
	if len(j.parties)+len(j.logs) == 0 {
		return nil
	}
	e.joints++
	key := fmt.Sprintf("%d-%d", e.index, e.joints)
	tx := store.Transaction{Request: idempotency.Request{Tenant: "a", Method: transactMethod, Key: key, Body: sha256.Sum256([]byte(key))}}
	for _, t := range parties {
		w := store.Worked{ID: t.id}
		if t.view != nil {
			w.Known = t.view.Known()
		}
		tx.Works = append(tx.Works, w)
	}
	for _, log := range j.logs {
		tx.Appends = append(tx.Appends, store.KeyedAppend{Shard: log.shard})
	}
	done, err := e.store.Transact(ctx, tx, func(st *store.Standing) (store.Judged, error) { return e.judge(j, st, key) })
	switch {
	case errors.Is(err, errRefused):
		e.refused(j)
		return nil
	case errors.Is(err, errReload):
		return nil // the views that could not go on are forgotten
	case err != nil:
		return err
	}
	e.landed(j, done)
	if e.rnd.IntN(4) > 0 {
		return nil
	}
	e.arena.kinds.saw("repeated transaction")
	again, err := e.store.Transact(ctx, tx, func(*store.Standing) (store.Judged, error) { return store.Judged{}, errAgain })
	if err == nil && (!again.Replayed || string(again.Answer) != key) {
		return fmt.Errorf("a repeated transaction: %+v", again)
	}
	return err
}

// judge plans for every party, and refuses all if anything of one is refused.
func (e *engine) judge(j *joint, st *store.Standing, answer string) (store.Judged, error) {
	j.changes, j.changed = nil, nil
	refused := false
	for i, t := range j.parties {
		if err := t.adopt(st.States[i]); err != nil {
			t.view = nil
			return store.Judged{}, err
		}
		change := e.plan(t, st.States[i].Now)
		refused = refused || slices.ContainsFunc(t.outcomes, func(o window.Outcome) bool { return o.Result == window.Stale })
		if !change.Empty() {
			j.changes, j.changed = append(j.changes, change), append(j.changed, t)
		}
	}
	if refused {
		return store.Judged{}, errRefused
	}
	rests := make([]store.Remainder, len(j.logs))
	for i, log := range j.logs {
		if st.Shards[i].Status != store.StatusNothing {
			return store.Judged{}, errClosed
		}
		rests[i].Append = appendOf(log.shard, j.hashes[i]...)
	}
	return store.Judged{Changes: j.changes, Rests: rests, Answer: []byte(answer)}, nil
}

// refused tells those whose lease is gone; of the others nothing was done, and they ask again.
func (e *engine) refused(j *joint) {
	e.arena.kinds.saw("refused transaction")
	for _, t := range j.parties {
		for i, c := range t.users {
			if settle, ok := t.requests[i].(*window.Settle); ok && t.outcomes[i].Result == window.Stale && settle.Epoch == c.epoch {
				c.open = nil
			}
		}
	}
}

// landed makes known what is committed.
func (e *engine) landed(j *joint, done store.Transacted) {
	queues := map[*arenaLog]bool{}
	for i, log := range j.logs {
		log.add(done.Appended[i].Base, j.hashes[i])
		queues[log] = true
	}
	for _, t := range j.parties {
		queues[t.log] = true
		n := slices.Index(j.changed, t)
		if n < 0 { // all of it was settled before
			t.record(windowtest.Record{Requests: t.requests, Outcomes: t.outcomes, Change: window.Change{From: t.view.Version(), To: t.view.Version()}})
			e.tell(t)
			continue
		}
		e.applied(t, j.changes[n], done.Works[n])
	}
	e.arena.kinds.saw("transaction")
	if len(queues) > 1 {
		e.arena.kinds.saw("transaction over two queues")
	}
}
