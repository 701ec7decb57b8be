package queue

func or[T any](p *T, fallback T) T {
	if p != nil {
		return *p
	}
	return fallback
}

func first[T any](a, b *T) *T {
	if a != nil {
		return a
	}
	return b
}
