-- +goose Up

-- now is the database's time of a statement. Keep it a bare one-liner: a test replaces it.
CREATE FUNCTION scheduler.now() RETURNS timestamptz LANGUAGE sql STABLE AS 'SELECT statement_timestamp()';

-- leaders counts the take-overs of each role. A leader's every write names its epoch and is refused when this row has a greater one.
CREATE TABLE scheduler.leaders (
    role       text        NOT NULL CONSTRAINT leaders_role_pk PRIMARY KEY,
    epoch      bigint      NOT NULL CONSTRAINT leaders_epoch_ck CHECK (epoch > 0),
    holder     text        NOT NULL,
    elected_at timestamptz NOT NULL
);
