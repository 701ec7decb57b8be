-- +goose Up

-- 0: the frame is in clear. Otherwise it is sealed with that key of the queue.
ALTER TABLE dispatcher.delayed ADD COLUMN key_id integer NOT NULL DEFAULT 0;
