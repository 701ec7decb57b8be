package engine_test

import "postrider.dev/services/dispatcher/internal/store"

func letterFilter() store.DeadLetterFilter { return store.DeadLetterFilter{Limit: 100} }
