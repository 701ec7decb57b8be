CREATE SCHEMA dispatcher;

CREATE FUNCTION dispatcher.clock() RETURNS timestamp with time zone
    LANGUAGE sql
    AS $$SELECT clock_timestamp()$$;

CREATE FUNCTION dispatcher.now() RETURNS timestamp with time zone
    LANGUAGE sql STABLE
    AS $$SELECT statement_timestamp()$$;

CREATE TABLE dispatcher.catalogued (
    shard_id bigint NOT NULL,
    upto bigint NOT NULL
)
WITH (fillfactor='50');

CREATE TABLE dispatcher.dead_letters (
    id uuid NOT NULL,
    tenant_id text NOT NULL,
    queue_id bigint NOT NULL,
    group_id bigint NOT NULL,
    group_name text NOT NULL,
    shard_id bigint NOT NULL,
    "offset" bigint NOT NULL,
    partition_hash bigint NOT NULL,
    partition text,
    client_id text DEFAULT ''::text NOT NULL,
    content_type text DEFAULT ''::text NOT NULL,
    headers bytea DEFAULT '\x'::bytea NOT NULL,
    payload bytea,
    deliveries integer NOT NULL,
    failures integer NOT NULL,
    reason text NOT NULL,
    last_error text DEFAULT ''::text NOT NULL,
    failed_at timestamp with time zone NOT NULL,
    redriven_at timestamp with time zone,
    key_id integer DEFAULT 0 NOT NULL,
    CONSTRAINT dead_letters_reason_ck CHECK ((reason = ANY (ARRAY['attempts'::text, 'expired'::text, 'rejected'::text, 'trimmed'::text, 'refused'::text])))
);
ALTER TABLE ONLY dispatcher.dead_letters ALTER COLUMN payload SET STORAGE EXTERNAL;

CREATE TABLE dispatcher.delayed (
    key uuid NOT NULL,
    shard_id bigint NOT NULL,
    available_at timestamp with time zone NOT NULL,
    seq bigint NOT NULL,
    frame bytea NOT NULL,
    key_id integer DEFAULT 0 NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_cost_delay='0', autovacuum_analyze_scale_factor='0', autovacuum_analyze_threshold='10000', vacuum_truncate='false');
ALTER TABLE ONLY dispatcher.delayed ALTER COLUMN frame SET STORAGE EXTERNAL;

ALTER TABLE dispatcher.delayed ALTER COLUMN seq ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME dispatcher.delayed_seq_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE dispatcher.garbage (
    kind text NOT NULL,
    id bigint NOT NULL,
    page bigint DEFAULT 0 NOT NULL,
    CONSTRAINT garbage_kind_ck CHECK ((kind = ANY (ARRAY['group_shard'::text, 'shard'::text, 'queue'::text])))
);

CREATE SEQUENCE dispatcher.group_shard_ids
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;

CREATE TABLE dispatcher.group_shards (
    id bigint DEFAULT nextval('dispatcher.group_shard_ids'::regclass) NOT NULL,
    version bigint DEFAULT 1 NOT NULL,
    group_id bigint NOT NULL,
    shard_id bigint NOT NULL,
    hot_chunk bigint DEFAULT 0 NOT NULL,
    hot bytea NOT NULL,
    low bigint DEFAULT 0 NOT NULL,
    unsettled_below bigint DEFAULT 0 NOT NULL,
    lease_low bigint DEFAULT 0 NOT NULL,
    chunks_version bigint DEFAULT 0 NOT NULL,
    retries_version bigint DEFAULT 0 NOT NULL,
    sought_version bigint DEFAULT 0 NOT NULL,
    lost bigint DEFAULT 0 NOT NULL,
    untold bigint DEFAULT 0 NOT NULL,
    kept_from bigint DEFAULT 0 NOT NULL,
    active_at timestamp with time zone DEFAULT dispatcher.clock() NOT NULL
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_cost_delay='0', autovacuum_analyze_scale_factor='0', autovacuum_analyze_threshold='10000', vacuum_truncate='false');
ALTER TABLE ONLY dispatcher.group_shards ALTER COLUMN hot SET STORAGE PLAIN;

CREATE TABLE dispatcher.groups (
    id bigint NOT NULL,
    queue_id bigint NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    mode text NOT NULL,
    on_failure text NOT NULL,
    start text NOT NULL,
    config jsonb DEFAULT '{}'::jsonb NOT NULL,
    group_shard_ids bigint[] NOT NULL,
    created_at timestamp with time zone DEFAULT dispatcher.now() NOT NULL,
    CONSTRAINT groups_mode_ck CHECK ((mode = ANY (ARRAY['ordered'::text, 'shared'::text]))),
    CONSTRAINT groups_on_failure_ck CHECK ((on_failure = ANY (ARRAY['block'::text, 'skip'::text])))
);

ALTER TABLE dispatcher.groups ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME dispatcher.groups_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE dispatcher.idempotency_keys (
    key uuid NOT NULL,
    shard_id bigint NOT NULL,
    "offset" bigint NOT NULL,
    body_hash bigint NOT NULL,
    answer bytea,
    created_at timestamp with time zone NOT NULL
)
WITH (vacuum_truncate='false');

CREATE TABLE dispatcher.leases (
    key uuid NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    holder text NOT NULL,
    entries bytea NOT NULL
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_cost_delay='0', autovacuum_analyze_scale_factor='0', autovacuum_analyze_threshold='10000', vacuum_truncate='false');

CREATE TABLE dispatcher.partitions (
    queue_id bigint NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    shard_id bigint NOT NULL,
    first_offset bigint NOT NULL,
    last_offset bigint NOT NULL,
    last_seen_at timestamp with time zone NOT NULL
);

CREATE SEQUENCE dispatcher.queue_key_ids
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;

CREATE TABLE dispatcher.queue_keys (
    id integer NOT NULL,
    queue_id bigint NOT NULL,
    purpose text NOT NULL,
    master_id text NOT NULL COLLATE pg_catalog."C",
    wrapped bytea NOT NULL,
    created_at timestamp with time zone DEFAULT dispatcher.now() NOT NULL,
    CONSTRAINT queue_keys_purpose_ck CHECK ((purpose = ANY (ARRAY['names'::text, 'data'::text])))
);

CREATE TABLE dispatcher.queues (
    id bigint NOT NULL,
    tenant_id text NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    config jsonb DEFAULT '{}'::jsonb NOT NULL,
    config_version bigint DEFAULT 1 NOT NULL,
    placement smallint DEFAULT 1 NOT NULL,
    shard_ids bigint[] NOT NULL,
    created_at timestamp with time zone DEFAULT dispatcher.now() NOT NULL,
    deleted_at timestamp with time zone
);

ALTER TABLE dispatcher.queues ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME dispatcher.queues_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE dispatcher.request_keys (
    tenant_id text NOT NULL COLLATE pg_catalog."C",
    method text NOT NULL COLLATE pg_catalog."C",
    key text NOT NULL COLLATE pg_catalog."C",
    body_hash bytea NOT NULL,
    answer bytea NOT NULL,
    rest uuid[],
    created_at timestamp with time zone NOT NULL,
    CONSTRAINT request_keys_body_hash_ck CHECK ((octet_length(body_hash) = 32))
);

CREATE TABLE dispatcher.retries (
    key uuid NOT NULL,
    partition_hash bigint NOT NULL,
    failures integer NOT NULL,
    deliveries integer NOT NULL,
    available_at timestamp with time zone NOT NULL,
    alone_through bigint NOT NULL,
    last_error text DEFAULT ''::text NOT NULL
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_cost_delay='0', autovacuum_analyze_scale_factor='0', autovacuum_analyze_threshold='10000', vacuum_truncate='false');

CREATE TABLE dispatcher.routes (
    queue_id bigint NOT NULL,
    node_id text NOT NULL,
    epoch bigint NOT NULL,
    claimed_at timestamp with time zone NOT NULL,
    CONSTRAINT routes_epoch_ck CHECK ((epoch > 0))
);

CREATE TABLE dispatcher.segments (
    shard_id bigint NOT NULL,
    base_offset bigint NOT NULL,
    count integer NOT NULL,
    created_at timestamp with time zone NOT NULL,
    flush_id uuid NOT NULL,
    codec smallint NOT NULL,
    key_id integer DEFAULT 0 NOT NULL,
    partitions bytea NOT NULL,
    sizes bytea NOT NULL,
    body bytea NOT NULL
)
WITH (autovacuum_analyze_scale_factor='0.5', vacuum_truncate='false');
ALTER TABLE ONLY dispatcher.segments ALTER COLUMN partitions SET STORAGE EXTERNAL;
ALTER TABLE ONLY dispatcher.segments ALTER COLUMN sizes SET STORAGE EXTERNAL;
ALTER TABLE ONLY dispatcher.segments ALTER COLUMN body SET STORAGE EXTERNAL;

CREATE TABLE dispatcher.service_keys (
    key uuid NOT NULL,
    created_at timestamp with time zone NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_cost_delay='0', autovacuum_analyze_scale_factor='0', autovacuum_analyze_threshold='10000', vacuum_truncate='false');

CREATE TABLE dispatcher.settled_chunks (
    key uuid NOT NULL,
    encoding smallint NOT NULL,
    data bytea NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_cost_delay='0', autovacuum_analyze_scale_factor='0', autovacuum_analyze_threshold='10000', vacuum_truncate='false');

CREATE SEQUENCE dispatcher.shard_ids
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;

CREATE TABLE dispatcher.shards (
    id bigint DEFAULT nextval('dispatcher.shard_ids'::regclass) NOT NULL,
    head bigint DEFAULT 0 NOT NULL,
    tail bigint DEFAULT 0 NOT NULL,
    end_bytes bigint DEFAULT 0 NOT NULL,
    tail_bytes bigint DEFAULT 0 NOT NULL,
    last_at timestamp with time zone DEFAULT '1970-01-01 00:00:00+00'::timestamp with time zone NOT NULL,
    config_version bigint DEFAULT 1 NOT NULL,
    queue_id bigint NOT NULL,
    lane smallint DEFAULT 0 NOT NULL,
    sealed boolean DEFAULT false NOT NULL
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_cost_delay='0', autovacuum_analyze_scale_factor='0', autovacuum_analyze_threshold='10000', vacuum_truncate='false');

CREATE TABLE dispatcher.subscribers (
    queue_id bigint NOT NULL,
    node_id uuid NOT NULL,
    subscribers bigint NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    CONSTRAINT subscribers_subscribers_ck CHECK ((subscribers > 0))
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_cost_delay='0', autovacuum_analyze_scale_factor='0', autovacuum_analyze_threshold='10000');

CREATE TABLE dispatcher.tombstones (
    shard_id bigint NOT NULL,
    "offset" bigint NOT NULL
);

CREATE TABLE dispatcher.trace_events (
    place uuid NOT NULL,
    id bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    group_name text DEFAULT ''::text NOT NULL COLLATE pg_catalog."C",
    events bytea DEFAULT '\x'::bytea NOT NULL,
    trimmed_from bigint,
    trimmed_to bigint,
    pushed_at timestamp with time zone
)
WITH (vacuum_truncate=off);

ALTER TABLE dispatcher.trace_events ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME dispatcher.trace_events_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

ALTER TABLE ONLY dispatcher.catalogued
    ADD CONSTRAINT catalogued_shard_id_pk PRIMARY KEY (shard_id);

ALTER TABLE ONLY dispatcher.dead_letters
    ADD CONSTRAINT dead_letters_id_pk PRIMARY KEY (id);

ALTER TABLE ONLY dispatcher.delayed
    ADD CONSTRAINT delayed_key_pk PRIMARY KEY (key);

ALTER TABLE ONLY dispatcher.garbage
    ADD CONSTRAINT garbage_kind_id_pk PRIMARY KEY (kind, id);

ALTER TABLE ONLY dispatcher.group_shards
    ADD CONSTRAINT group_shards_id_version_pk PRIMARY KEY (id, version);

ALTER TABLE ONLY dispatcher.groups
    ADD CONSTRAINT groups_id_pk PRIMARY KEY (id);

ALTER TABLE ONLY dispatcher.groups
    ADD CONSTRAINT groups_queue_id_name_uq UNIQUE (queue_id, name);

ALTER TABLE ONLY dispatcher.idempotency_keys
    ADD CONSTRAINT idempotency_keys_key_pk PRIMARY KEY (key);

ALTER TABLE ONLY dispatcher.leases
    ADD CONSTRAINT leases_key_pk PRIMARY KEY (key);

ALTER TABLE ONLY dispatcher.partitions
    ADD CONSTRAINT partitions_queue_id_name_shard_id_pk PRIMARY KEY (queue_id, name, shard_id);

ALTER TABLE ONLY dispatcher.queue_keys
    ADD CONSTRAINT queue_keys_id_pk PRIMARY KEY (id);

ALTER TABLE ONLY dispatcher.queues
    ADD CONSTRAINT queues_id_pk PRIMARY KEY (id);

ALTER TABLE ONLY dispatcher.request_keys
    ADD CONSTRAINT request_keys_tenant_id_method_key_pk PRIMARY KEY (tenant_id, method, key);

ALTER TABLE ONLY dispatcher.retries
    ADD CONSTRAINT retries_key_pk PRIMARY KEY (key);

ALTER TABLE ONLY dispatcher.routes
    ADD CONSTRAINT routes_queue_id_pk PRIMARY KEY (queue_id);

ALTER TABLE ONLY dispatcher.segments
    ADD CONSTRAINT segments_shard_id_base_offset_pk PRIMARY KEY (shard_id, base_offset);

ALTER TABLE ONLY dispatcher.service_keys
    ADD CONSTRAINT service_keys_key_pk PRIMARY KEY (key);

ALTER TABLE ONLY dispatcher.settled_chunks
    ADD CONSTRAINT settled_chunks_key_pk PRIMARY KEY (key);

ALTER TABLE ONLY dispatcher.shards
    ADD CONSTRAINT shards_id_head_pk PRIMARY KEY (id, head);

ALTER TABLE ONLY dispatcher.subscribers
    ADD CONSTRAINT subscribers_queue_id_node_id_pk PRIMARY KEY (queue_id, node_id);

ALTER TABLE ONLY dispatcher.tombstones
    ADD CONSTRAINT tombstones_shard_id_offset_pk PRIMARY KEY (shard_id, "offset");

ALTER TABLE ONLY dispatcher.trace_events
    ADD CONSTRAINT trace_events_place_id_pk PRIMARY KEY (place, id);

CREATE INDEX dead_letters_open_group_name_queue_id_id_idx ON dispatcher.dead_letters USING btree (group_name, queue_id, id) WHERE (redriven_at IS NULL);

CREATE INDEX dead_letters_open_queue_id_id_idx ON dispatcher.dead_letters USING btree (queue_id, id) WHERE (redriven_at IS NULL);

CREATE INDEX dead_letters_redriven_queue_id_id_idx ON dispatcher.dead_letters USING btree (queue_id, id) WHERE (redriven_at IS NOT NULL);

CREATE INDEX dead_letters_shard_id_offset_idx ON dispatcher.dead_letters USING btree (shard_id, "offset");

CREATE INDEX delayed_available_at_idx ON dispatcher.delayed USING btree (available_at);

CREATE INDEX delayed_shard_id_available_at_seq_idx ON dispatcher.delayed USING btree (shard_id, available_at, seq);

CREATE INDEX idempotency_keys_created_at_idx ON dispatcher.idempotency_keys USING brin (created_at) WITH (autosummarize='on');

CREATE INDEX leases_expires_at_idx ON dispatcher.leases USING btree (expires_at);

CREATE INDEX queue_keys_queue_id_id_idx ON dispatcher.queue_keys USING btree (queue_id, id);

CREATE INDEX queues_deleted_tenant_id_name_idx ON dispatcher.queues USING btree (tenant_id, name) WHERE (deleted_at IS NOT NULL);

CREATE UNIQUE INDEX queues_tenant_id_name_uq ON dispatcher.queues USING btree (tenant_id, name) WHERE (deleted_at IS NULL);

CREATE INDEX request_keys_created_at_idx ON dispatcher.request_keys USING btree (created_at);

CREATE INDEX subscribers_expires_at_idx ON dispatcher.subscribers USING btree (expires_at);

CREATE INDEX subscribers_node_id_idx ON dispatcher.subscribers USING btree (node_id);

CREATE INDEX trace_events_at_idx ON dispatcher.trace_events USING brin (at) WITH (autosummarize='on');

ALTER TABLE ONLY dispatcher.groups
    ADD CONSTRAINT groups_queue_id_fk FOREIGN KEY (queue_id) REFERENCES dispatcher.queues(id);
