-- +goose Up

-- What trimming took from a group, written by the same compare-and-set as everything else of the row; and when a consumer did something last, so that a
-- group nobody uses any more does not keep the log of a queue that drops what is settled.
ALTER TABLE dispatcher.group_shards
    ADD COLUMN lost      bigint      NOT NULL DEFAULT 0, -- messages trimmed before they were settled
    ADD COLUMN untold    bigint      NOT NULL DEFAULT 0, -- of these, since a pop was last told
    ADD COLUMN kept_from bigint      NOT NULL DEFAULT 0, -- the first offset kept by the last trim that took something
    ADD COLUMN active_at timestamptz NOT NULL DEFAULT dispatcher.clock();

ALTER TABLE dispatcher.dead_letters
    DROP CONSTRAINT dead_letters_reason_ck,
    ADD CONSTRAINT dead_letters_reason_ck CHECK (reason IN ('attempts', 'expired', 'rejected', 'trimmed'));
