SELECT mesh.announce($1::jsonb)
