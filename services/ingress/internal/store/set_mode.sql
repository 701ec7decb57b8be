SELECT name, enabled, reason, changed_at, changed_by, version, changed FROM mesh.set_mode(@mode, @enabled, @reason, @by)
