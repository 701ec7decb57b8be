package message

// What a message costs on the wire beside its frame. A frame has each name and value with its length; a delivery adds tags, the message's id (22), offset,
// attempt and time, the length of the payload, and its own tag and length.
const (
	wireFixed  = 72
	wireHeader = 5 // tag and length of the entry, tags of its name and value
	maxHeaders = 72
)

// WireBound is the most bytes that a message of this frame size takes in an answer. It is made from the size alone, which is all that is known of a
// message before its segment is read: a frame of n bytes has at most n/3 headers.
func WireBound(frameSize uint32) int64 {
	n := int64(frameSize)
	return n + wireFixed + wireHeader*min(n/3+1, maxHeaders)
}
