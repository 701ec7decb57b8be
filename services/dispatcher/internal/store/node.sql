-- name: announce
-- The node directory is the sidecar's; this is its exported function.
SELECT mesh.announce(@nodes::jsonb);
