SELECT name, enabled, reason, changed_at, changed_by, version, false FROM mesh.modes()
