SELECT addresses ->> 'mesh' FROM mesh.directory()
WHERE service = 'meshhint' AND state <> 'dead' AND node_id <> $1 AND addresses ->> 'mesh' <> ''
ORDER BY node_id LIMIT 256
