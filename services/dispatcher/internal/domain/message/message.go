// Package message holds the immutable message and its address in the log.
package message

// Offset is the dense position of a message in one shard, given under the shard's lock. Offset order is commit order.
type Offset int64

// ShardID names one physical log. It is never reused.
type ShardID int64

// Header is one name and value carried beside the payload. Order is kept.
type Header struct {
	Name  string
	Value string
}

// Message is what a producer pushed. It never changes; the payload's bytes come back as they were sent.
type Message struct {
	Partition   string
	ClientID    string // the producer's own name for it; may be empty
	ContentType string
	Headers     []Header // traceparent travels here
	Payload     []byte
}

// Header returns the first value under name and whether there is one.
func (m *Message) Header(name string) (string, bool) {
	for _, h := range m.Headers {
		if h.Name == name {
			return h.Value, true
		}
	}
	return "", false
}
