package spool

// WriteAll does what Run does when it is woken.
func (l *Log) WriteAll() { l.writeAll() }

// Salted makes the bytes of a record for tests.
func Salted(seed byte, seq uint64, batch int64, payload []byte) []byte {
	return appendRecord(nil, salt{seed}, seq, batch, payload)
}

// Parse reads what Salted wrote.
func Parse(b []byte, seed byte) (seq uint64, payload []byte, ok bool) {
	h, payload, err := parseRecord(b, salt{seed})
	return h.seq, payload, err == nil
}
