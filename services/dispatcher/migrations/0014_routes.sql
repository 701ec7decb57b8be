-- +goose Up

-- Which dispatcher the operations of a queue are routed to: the registry. Who takes over says which epoch it saw, and is one of those that read it at that
-- epoch. A row of a node that is not online is void until somebody takes over. Nothing of the queue's data is guarded by it.
CREATE TABLE dispatcher.routes (
    queue_id   bigint      NOT NULL,
    node_id    text        NOT NULL, -- of the dispatcher's process, as in the node directory
    epoch      bigint      NOT NULL CONSTRAINT routes_epoch_ck CHECK (epoch > 0),
    claimed_at timestamptz NOT NULL,
    CONSTRAINT routes_queue_id_pk PRIMARY KEY (queue_id)
);
