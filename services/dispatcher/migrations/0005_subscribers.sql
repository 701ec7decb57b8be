-- +goose Up

-- How many subscriptions each dispatcher serves of each queue, for inspection. Written again and again by the dispatcher; what it does not renew counts no
-- more once it has expired.
CREATE TABLE dispatcher.subscribers (
    queue_id    bigint      NOT NULL,
    node_id     uuid        NOT NULL, -- of the dispatcher's process
    subscribers bigint      NOT NULL CONSTRAINT subscribers_subscribers_ck CHECK (subscribers > 0),
    expires_at  timestamptz NOT NULL,
    CONSTRAINT subscribers_queue_id_node_id_pk PRIMARY KEY (queue_id, node_id)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 10000);
CREATE INDEX subscribers_node_id_idx ON dispatcher.subscribers (node_id);
CREATE INDEX subscribers_expires_at_idx ON dispatcher.subscribers (expires_at);
