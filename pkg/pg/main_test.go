package pg_test

import (
	"testing"
	"testing/fstest"

	"postrider.dev/pkg/migrate"
	"postrider.dev/pkg/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// accounts is a schema to try transactions on.
func accounts() migrate.Set {
	return migrate.Set{Schema: "bank", FS: fstest.MapFS{"0001_accounts.sql": {Data: []byte(`-- +goose Up
CREATE TABLE bank.accounts (
	id      int CONSTRAINT accounts_id_pk PRIMARY KEY,
	name    varchar(10) NOT NULL CONSTRAINT accounts_name_uq UNIQUE,
	balance int NOT NULL CONSTRAINT accounts_balance_ck CHECK (balance >= 0)
);
INSERT INTO bank.accounts VALUES (1, 'one', 100), (2, 'two', 100);`)}}}
}
