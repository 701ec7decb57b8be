package store

import (
	"context"
	"fmt"

	"postrider.dev/pkg/idempotency"
	"postrider.dev/pkg/pg"
)

// Progress is how far a request under an idempotency key has come.
type Progress struct {
	Begun  bool   // a transaction of the request is committed
	Answer []byte // what is to be answered of what is done
	Rest   []DeadLetterID
}

// Step runs one transaction of a request and keeps in it how far the request has come. do gets how far it was and works through the Control it is given.
// A finished request (no Rest) is not run again: what it came to is returned, replayed. The error matches idempotency.ErrReused if the key was used for
// another request, and idempotency.ErrInUse if a transaction under the key is running.
//
// A request of several transactions is not locked between them: who repeats it goes on where it stands, and each part is done once.
func (c *Control) Step(ctx context.Context, req idempotency.Request, do func(*Control, Progress) (Progress, error)) (now Progress, replayed bool, err error) {
	err = c.inTx(ctx, func(tx pg.Tx) error {
		was, err := c.claimRequest(ctx, tx, req)
		if err != nil {
			return err
		}
		if replayed = was.Begun && len(was.Rest) == 0; replayed {
			now = was
			return nil
		}
		if now, err = do(c.within(tx), was); err != nil {
			return err
		}
		if now.Begun = true; len(now.Rest) == 0 {
			now.Rest = nil
		}
		// The row comes last: it needs the answer. For a redrive that is one more round trip under the lock of its shards, when a key is used.
		return c.exec(ctx, tx, "request_put", string(req.Tenant), req.Method, req.Key, req.Body[:], notNil(now.Answer), now.Rest)
	})
	if err != nil {
		return Progress{}, false, err
	}
	return now, replayed, nil
}

// Once implements idempotency.Keeper: a request of one transaction.
func (c *Control) Once(ctx context.Context, req idempotency.Request, do func(*Control) ([]byte, error)) (answer []byte, replayed bool, err error) {
	now, replayed, err := c.Step(ctx, req, func(in *Control, _ Progress) (Progress, error) {
		answer, err := do(in)
		return Progress{Answer: answer}, err
	})
	return now.Answer, replayed, err
}

// claimRequest makes the transaction the only one under the key, and returns what is remembered.
func (c *Control) claimRequest(ctx context.Context, tx pg.Tx, req idempotency.Request) (Progress, error) {
	class, id := req.Lock()
	var alone bool
	if err := tx.QueryRow(ctx, c.s.sql.text("request_claim"), class, id).Scan(&alone); err != nil {
		return Progress{}, fmt.Errorf("claim idempotency key: %w", err)
	}
	if !alone {
		return Progress{}, idempotency.ErrInUse
	}
	was := Progress{Begun: true}
	var body []byte
	err := tx.QueryRow(ctx, c.s.sql.text("request_find"), string(req.Tenant), req.Method, req.Key, idempotency.Window).Scan(&body, &was.Answer, &was.Rest)
	switch {
	case pg.IsNoRows(err):
		return Progress{}, nil
	case err != nil:
		return Progress{}, fmt.Errorf("find idempotency key: %w", err)
	case string(body) != string(req.Body[:]):
		return Progress{}, idempotency.ErrReused
	}
	return was, nil
}

// TrimRequests forgets up to most requests that are older than idempotency.Window, and returns how many.
func (c *Control) TrimRequests(ctx context.Context, most int) (int, error) {
	tag, err := c.s.db.Exec(ctx, c.s.sql.text("request_trim"), idempotency.Window, most)
	if err != nil {
		return 0, fmt.Errorf("trim idempotency keys of requests: %w", err)
	}
	return int(tag.RowsAffected()), nil
}
