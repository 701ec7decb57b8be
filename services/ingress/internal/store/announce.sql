SELECT mesh.announce(@nodes::jsonb)
