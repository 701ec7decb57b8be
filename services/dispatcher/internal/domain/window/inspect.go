package window

// What the parts of a view take, roughly, with the maps and slices around them.
const (
	viewBytes  = 4 << 10
	keyBytes   = 320
	itemBytes  = 16
	leaseBytes = 256
	entryBytes = 32
	retryBytes = 256
)

// Bytes is about how much memory the view takes, for who bounds all views together.
func (v *View) Bytes() int {
	return viewBytes + keyBytes*len(v.keys) + itemBytes*v.admitted + leaseBytes*len(v.leases) + entryBytes*v.leased + retryBytes*len(v.retries)
}

// Held lists the offsets that a lease still holds, ascending; none if the view holds no such lease.
func (v *View) Held(e Epoch) []Offset {
	l := v.leases[e]
	if l == nil {
		return nil
	}
	offsets := make([]Offset, len(l.entries))
	for i := range l.entries {
		offsets[i] = l.entries[i].off
	}
	return offsets
}
