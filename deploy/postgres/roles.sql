-- Five roles, one a service, each the owner of its own schema and of nothing else. Optional: one role for all works, this is the hardened form.
--
-- Run it in Postrider's database, as a superuser or as a role that may create roles, before the first migration; it may be repeated:
--
--     psql -v ON_ERROR_STOP=1 -f roles.sql "$ADMIN_DATABASE_URL"
--     ALTER ROLE postrider_dispatcher PASSWORD '...';   -- and so on; then each service's own POSTRIDER_<SERVICE>_DATABASE_URL
--
-- A service migrates its own schema as its own role. What a service exports are functions: they are granted to everyone by its migrations, and
-- everyone is who may enter the schema: the five roles, for audit and mesh. No role can read another's tables.

DO $roles$
DECLARE
    schemas constant text[] := ARRAY['ingress', 'dispatcher', 'scheduler', 'audit', 'mesh'];
    owned text;
    owner text;
    caller text;
BEGIN
    EXECUTE format('REVOKE ALL ON DATABASE %I FROM PUBLIC', current_database());
    FOREACH owned IN ARRAY schemas LOOP
        owner := 'postrider_' || owned;
        BEGIN
            EXECUTE format('CREATE ROLE %I LOGIN', owner);
        EXCEPTION WHEN duplicate_object OR unique_violation THEN
            NULL; -- roles belong to the whole server: another database of it may have made them
        END;
        EXECUTE format('GRANT %I TO CURRENT_USER', owner);
        EXECUTE format('GRANT CONNECT ON DATABASE %I TO %I', current_database(), owner);
        EXECUTE format('CREATE SCHEMA IF NOT EXISTS %I AUTHORIZATION %I', owned, owner);
        -- A new function is otherwise executable by all; exported is what a migration grants.
        EXECUTE format('ALTER DEFAULT PRIVILEGES FOR ROLE %I REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC', owner);
    END LOOP;
    -- Where functions are exported, the others may enter.
    FOREACH owned IN ARRAY ARRAY['audit', 'mesh'] LOOP
        FOREACH caller IN ARRAY schemas LOOP
            EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', owned, 'postrider_' || caller);
        END LOOP;
    END LOOP;
END $roles$;

-- A process that is stopped or cut off inside a transaction must not stop a queue (the dispatcher's own sessions say the same themselves).
ALTER ROLE postrider_dispatcher SET idle_in_transaction_session_timeout = '3s';
ALTER ROLE postrider_dispatcher SET lock_timeout = '2s';
ALTER ROLE postrider_dispatcher SET plan_cache_mode = force_generic_plan;
ALTER ROLE postrider_dispatcher SET jit = off;
