package settled

// CountUnsettled lets tests count what a row says.
func CountUnsettled(c Chunk) int64 { return c.unsettled() }
