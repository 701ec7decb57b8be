package store

// Statement returns the text of one statement.
func Statement(name string) string { return readBook().text(name) }
