-- +goose Up

-- What every table here obeys, and why, was measured:
--  1. A number that changes with each commit is part of its row's primary key, and the table has no other index. An index on the id alone
--     would walk every dead version at each update while a foreign snapshot (a backup) keeps them from being vacuumed.
--  2. Sets are looked up by a one-column uuid made of two numbers, so there is one way to look them up, whatever the planner believes.
--  3. No foreign keys from or to hot tables, no triggers, no jsonb on the path of a message.

-- now is the database's time of a statement, for what is compared with an index. Keep it a bare one-liner: it is inlined.
CREATE FUNCTION dispatcher.now() RETURNS timestamptz LANGUAGE sql STABLE AS 'SELECT statement_timestamp()';

-- clock is the database's time at this very moment. A statement that waited for a lock takes its instants from it, after the wait.
CREATE FUNCTION dispatcher.clock() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT clock_timestamp()';

CREATE TABLE dispatcher.queues (
    id             bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT queues_id_pk PRIMARY KEY,
    tenant_id      text        NOT NULL,
    name           text        NOT NULL COLLATE "C",
    config         jsonb       NOT NULL DEFAULT '{}',
    config_version bigint      NOT NULL DEFAULT 1,
    placement      smallint    NOT NULL DEFAULT 1, -- how a partition finds its shard; fixed
    shard_ids      bigint[]    NOT NULL,           -- by lane, then by place in the lane; fixed
    created_at     timestamptz NOT NULL DEFAULT dispatcher.now(),
    deleted_at     timestamptz
);
CREATE UNIQUE INDEX queues_tenant_id_name_uq ON dispatcher.queues (tenant_id, name) WHERE deleted_at IS NULL;
CREATE INDEX queues_deleted_tenant_id_name_idx ON dispatcher.queues (tenant_id, name) WHERE deleted_at IS NOT NULL; -- their dead letters stay

CREATE TABLE dispatcher.groups (
    id              bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT groups_id_pk PRIMARY KEY,
    queue_id        bigint      NOT NULL CONSTRAINT groups_queue_id_fk REFERENCES dispatcher.queues (id),
    name            text        NOT NULL COLLATE "C",
    mode            text        NOT NULL CONSTRAINT groups_mode_ck CHECK (mode IN ('ordered', 'shared')),
    on_failure      text        NOT NULL CONSTRAINT groups_on_failure_ck CHECK (on_failure IN ('block', 'skip')),
    start           text        NOT NULL,          -- 'earliest', 'latest' or an RFC 3339 instant; fixed
    config          jsonb       NOT NULL DEFAULT '{}',
    group_shard_ids bigint[]    NOT NULL,          -- in the order of queues.shard_ids
    created_at      timestamptz NOT NULL DEFAULT dispatcher.now(),
    CONSTRAINT groups_queue_id_name_uq UNIQUE (queue_id, name)
);

-- Ids of shards and group-shards are taken from these and never reused.
CREATE SEQUENCE dispatcher.shard_ids AS bigint;
CREATE SEQUENCE dispatcher.group_shard_ids AS bigint;

-- The hot row of push: one update a flush. Offsets are given under its lock, so their order is the order of commits.
CREATE TABLE dispatcher.shards (
    id             bigint      NOT NULL DEFAULT nextval('dispatcher.shard_ids'),
    head           bigint      NOT NULL DEFAULT 0, -- the next offset
    tail           bigint      NOT NULL DEFAULT 0, -- the first offset that is kept
    end_bytes      bigint      NOT NULL DEFAULT 0, -- bytes of bodies ever appended
    tail_bytes     bigint      NOT NULL DEFAULT 0, -- bytes of bodies trimmed
    last_at        timestamptz NOT NULL DEFAULT '1970-01-01 00:00:00+00', -- of the newest segment; never decreases
    config_version bigint      NOT NULL DEFAULT 1, -- of the queue; written with it, read back by every flush
    queue_id       bigint      NOT NULL,
    lane           smallint    NOT NULL DEFAULT 0,
    sealed         boolean     NOT NULL DEFAULT false,
    CONSTRAINT shards_id_head_pk PRIMARY KEY (id, head)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 10000, vacuum_truncate = false);

-- One committed batch. Insert only; trimmed whole.
CREATE TABLE dispatcher.segments (
    shard_id    bigint      NOT NULL,
    base_offset bigint      NOT NULL,
    count       integer     NOT NULL,
    created_at  timestamptz NOT NULL,
    flush_id    uuid        NOT NULL, -- tells a dispatcher whose connection broke whether its flush is in
    codec       smallint    NOT NULL,
    key_id      integer     NOT NULL DEFAULT 0,
    partitions  bytea       NOT NULL, -- count x 8 bytes: the hash of each message's partition
    sizes       bytea       NOT NULL, -- varints
    body        bytea       NOT NULL,
    CONSTRAINT segments_shard_id_base_offset_pk PRIMARY KEY (shard_id, base_offset)
) WITH (autovacuum_analyze_scale_factor = 0.5, vacuum_truncate = false);
ALTER TABLE dispatcher.segments
    ALTER COLUMN partitions SET STORAGE EXTERNAL,
    ALTER COLUMN sizes SET STORAGE EXTERNAL,
    ALTER COLUMN body SET STORAGE EXTERNAL;

-- Keys of messages and of whole requests. A key belongs to one shard, and that shard's lock is what decides between racers.
CREATE TABLE dispatcher.idempotency_keys (
    key        uuid        NOT NULL CONSTRAINT idempotency_keys_key_pk PRIMARY KEY, -- hash of shard, kind, partition, producer's key
    shard_id   bigint      NOT NULL,
    "offset"   bigint      NOT NULL, -- of the message, or of the request's first
    body_hash  bigint      NOT NULL, -- the same key with another body is an error
    answer     bytea,                -- what a whole request was told; null for a message's key
    created_at timestamptz NOT NULL
) WITH (vacuum_truncate = false);
CREATE INDEX idempotency_keys_created_at_idx ON dispatcher.idempotency_keys USING brin (created_at) WITH (autosummarize = on);

-- The hot row of pop and ack: one update a work commit, and every commit bumps version by one.
CREATE TABLE dispatcher.group_shards (
    id              bigint NOT NULL DEFAULT nextval('dispatcher.group_shard_ids'),
    version         bigint NOT NULL DEFAULT 1,
    group_id        bigint NOT NULL,
    shard_id        bigint NOT NULL,
    hot_chunk       bigint NOT NULL DEFAULT 0, -- number of the first of two chunks of 4,096 offsets held inline
    hot             bytea  NOT NULL,           -- their settled bits, 2 x 512 bytes
    low             bigint NOT NULL DEFAULT 0, -- the first unsettled offset
    unsettled_below bigint NOT NULL DEFAULT 0, -- unsettled messages below the pair, in chunk rows
    lease_low       bigint NOT NULL DEFAULT 0, -- no lease is older than this version
    chunks_version  bigint NOT NULL DEFAULT 0, -- the version that last wrote chunk rows, so that a refresh may leave them unread
    retries_version bigint NOT NULL DEFAULT 0, -- the same for retry rows
    CONSTRAINT group_shards_id_version_pk PRIMARY KEY (id, version)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 10000, vacuum_truncate = false);
ALTER TABLE dispatcher.group_shards ALTER COLUMN hot SET STORAGE PLAIN;

-- Settled bits of chunks outside the inline pair. No row: below the pair all is settled, above it nothing is.
CREATE TABLE dispatcher.settled_chunks (
    key      uuid     NOT NULL CONSTRAINT settled_chunks_key_pk PRIMARY KEY, -- group-shard | chunk
    encoding smallint NOT NULL, -- 1 unsettled offsets, two bytes each; 2 bitmap; 3 nothing settled
    data     bytea    NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 10000, vacuum_truncate = false);

-- One row an outstanding lease.
CREATE TABLE dispatcher.leases (
    key        uuid        NOT NULL CONSTRAINT leases_key_pk PRIMARY KEY, -- group-shard | version that made it, 48 bit | ordinal, 16 bit
    expires_at timestamptz NOT NULL,
    holder     text        NOT NULL,
    entries    bytea       NOT NULL -- what is still open
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 10000, vacuum_truncate = false);
CREATE INDEX leases_expires_at_idx ON dispatcher.leases (expires_at);

-- Exceptions only: a message that failed, or travels alone.
CREATE TABLE dispatcher.retries (
    key            uuid        NOT NULL CONSTRAINT retries_key_pk PRIMARY KEY, -- group-shard | offset
    partition_hash bigint      NOT NULL,
    failures       integer     NOT NULL,
    deliveries     integer     NOT NULL,
    available_at   timestamptz NOT NULL,
    alone_through  bigint      NOT NULL,
    last_error     text        NOT NULL DEFAULT ''
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 10000, vacuum_truncate = false);

-- Snapshots of messages out of attempts or rejected. They outlive the log, the group and the queue.
CREATE TABLE dispatcher.dead_letters (
    id           uuid        NOT NULL CONSTRAINT dead_letters_id_pk PRIMARY KEY, -- grows with time
    tenant_id    text        NOT NULL,
    queue_id     bigint      NOT NULL,
    group_id     bigint      NOT NULL,
    group_name   text        NOT NULL,
    shard_id     bigint      NOT NULL,
    "offset"     bigint      NOT NULL,
    partition_hash bigint    NOT NULL,
    partition    text,                 -- null, and so the payload: the message was trimmed while it waited
    client_id    text        NOT NULL DEFAULT '',
    content_type text        NOT NULL DEFAULT '',
    headers      bytea       NOT NULL DEFAULT '', -- pairs of name and value, each behind its length as a varint
    payload      bytea,
    deliveries   integer     NOT NULL,
    failures     integer     NOT NULL,
    reason       text        NOT NULL CONSTRAINT dead_letters_reason_ck CHECK (reason IN ('attempts', 'expired', 'rejected')),
    last_error   text        NOT NULL DEFAULT '',
    failed_at    timestamptz NOT NULL,
    redriven_at  timestamptz
);
ALTER TABLE dispatcher.dead_letters ALTER COLUMN payload SET STORAGE EXTERNAL;
-- Three, none of which can stand in for another: open ones by queue, open ones by group (whose name, unlike its id, outlives it), and the others.
CREATE INDEX dead_letters_open_queue_id_id_idx ON dispatcher.dead_letters (queue_id, id) WHERE redriven_at IS NULL;
CREATE INDEX dead_letters_open_group_name_queue_id_id_idx ON dispatcher.dead_letters (group_name, queue_id, id) WHERE redriven_at IS NULL;
CREATE INDEX dead_letters_redriven_queue_id_id_idx ON dispatcher.dead_letters (queue_id, id) WHERE redriven_at IS NOT NULL;

-- Names of partitions, for listing only; written behind the log, never in a flush.
CREATE TABLE dispatcher.partitions (
    queue_id     bigint      NOT NULL,
    name         text        NOT NULL COLLATE "C",
    shard_id     bigint      NOT NULL,
    first_offset bigint      NOT NULL,
    last_offset  bigint      NOT NULL,
    last_seen_at timestamptz NOT NULL,
    CONSTRAINT partitions_queue_id_name_pk PRIMARY KEY (queue_id, name)
);

CREATE TABLE dispatcher.catalogued (
    shard_id bigint NOT NULL CONSTRAINT catalogued_shard_id_pk PRIMARY KEY,
    upto     bigint NOT NULL -- partitions of every message below it are in the catalogue
) WITH (fillfactor = 50);

-- What a delete left to be freed in bounded batches. Written in the transaction that made it unreachable.
CREATE TABLE dispatcher.garbage (
    kind text   NOT NULL CONSTRAINT garbage_kind_ck CHECK (kind IN ('group_shard', 'shard', 'queue')),
    id   bigint NOT NULL,
    page bigint NOT NULL DEFAULT 0, -- shard: pages of idempotency_keys below it are done, since that table is scanned once by place
    CONSTRAINT garbage_kind_id_pk PRIMARY KEY (kind, id)
);
