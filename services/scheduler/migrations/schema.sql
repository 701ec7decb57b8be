CREATE SCHEMA scheduler;

CREATE FUNCTION scheduler.now() RETURNS timestamp with time zone
    LANGUAGE sql STABLE
    AS $$SELECT statement_timestamp()$$;

CREATE TABLE scheduler.leaders (
    role text NOT NULL,
    epoch bigint NOT NULL,
    holder text NOT NULL,
    elected_at timestamp with time zone NOT NULL,
    CONSTRAINT leaders_epoch_ck CHECK ((epoch > 0))
);

ALTER TABLE ONLY scheduler.leaders
    ADD CONSTRAINT leaders_role_pk PRIMARY KEY (role);
