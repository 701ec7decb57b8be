package store

import (
	"context"

	"github.com/jackc/pgx/v5"

	"postrider.dev/pkg/idempotency"
	"postrider.dev/pkg/pg"
)

// Once runs do in one transaction with the memory of its answer, or returns the answer kept before, replayed. do works through the Store it is given and
// may run more than once. Its error is returned, and then nothing happened and nothing is kept. The error matches idempotency.ErrReused if the key was
// used for another request, and idempotency.ErrInUse if a request with it is running.
func (s *Store) Once(ctx context.Context, req idempotency.Request, do func(*Store) ([]byte, error)) (answer []byte, replayed bool, err error) {
	err = s.inTx(ctx, func(tx pg.Tx) error {
		var err error
		if answer, replayed, err = findRequest(ctx, tx, req); err != nil || replayed {
			return err
		}
		if answer, err = do(&Store{db: s.db, tx: tx}); err != nil {
			return err
		}
		if answer == nil {
			answer = []byte{}
		}
		args := requestArgs(req)
		args["body_hash"], args["answer"] = req.Body[:], answer
		_, err = tx.Exec(ctx, putRequestSQL, args)
		return err
	})
	if err != nil {
		return nil, false, wrap("request once", err)
	}
	return answer, replayed, nil
}

// findRequest makes the transaction the only one under the key, and returns what is remembered.
func findRequest(ctx context.Context, tx pg.Tx, req idempotency.Request) (answer []byte, found bool, err error) {
	class, id := req.Lock()
	var alone bool
	if err := tx.QueryRow(ctx, claimRequestSQL, pgx.NamedArgs{"class": class, "id": id}).Scan(&alone); err != nil {
		return nil, false, err
	}
	if !alone {
		return nil, false, idempotency.ErrInUse
	}
	args := requestArgs(req)
	args["age"] = idempotency.Window
	var body []byte
	err = tx.QueryRow(ctx, findRequestSQL, args).Scan(&body, &answer)
	switch {
	case pg.IsNoRows(err):
		return nil, false, nil
	case err != nil:
		return nil, false, err
	case string(body) != string(req.Body[:]):
		return nil, false, idempotency.ErrReused
	}
	return answer, true, nil
}

func requestArgs(req idempotency.Request) pgx.NamedArgs {
	return pgx.NamedArgs{"tenant": string(req.Tenant), "method": req.Method, "key": req.Key}
}

// TrimRequests forgets up to most requests that are older than idempotency.Window, and returns how many.
func (s *Store) TrimRequests(ctx context.Context, most int) (int, error) {
	tag, err := s.db.Exec(ctx, trimRequestsSQL, pgx.NamedArgs{"age": idempotency.Window, "most": most})
	return int(tag.RowsAffected()), wrap("trim requests", err)
}
