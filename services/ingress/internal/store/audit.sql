SELECT audit.enqueue(@tenant, @actor, @action, @resource, @detail::jsonb)
