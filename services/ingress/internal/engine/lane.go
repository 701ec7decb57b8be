package engine

// laneKey names a queue of a tenant.
type laneKey struct{ tenant, queue string }

// lane keeps the pushes of one queue in the order of their submission. While any of them is out, those that follow take the same stream; to change to a
// better dispatcher they wait until none is. A lane lives no longer than its pushes, so an idle queue costs nothing.
type lane struct {
	key    laneKey
	stream *stream
	out    int // submitted to stream and not back
	moving bool
	queue  []*task // submitted while moving, in order
}

// submitPush gives a push to the stream of its lane, or makes the lane. False: no dispatcher takes it.
func (x *Exchange) submitPush(t *task) bool {
	x.lanesMu.Lock()
	defer x.lanesMu.Unlock()
	return x.submitLane(t)
}

// submitLane needs x.lanesMu.
func (x *Exchange) submitLane(t *task) bool {
	key := laneKey{t.op.GetTenant(), t.op.GetPush().GetQueue()}
	peers := x.order(t)
	if l := x.lanes[key]; l != nil {
		switch {
		case l.moving:
			l.queue = append(l.queue, t)
			return true
		case len(peers) > 0 && peers[0] != l.stream.peer && l.stream.isUp():
			l.moving = true
			l.queue = append(l.queue, t)
			return true
		}
		t.lane = l
		if l.stream.peer.usable() && l.stream.submit(t) {
			l.out++
			return true
		}
		// Its stream is gone, and what it had out is being lost: those that follow start anew.
	}
	l := &lane{key: key, out: 1}
	t.lane = l
	for _, p := range peers {
		if s := p.submit(t); s != nil {
			l.stream = s
			x.lanes[key] = l
			return true
		}
	}
	t.lane = nil
	return false
}

// back notes that a push has left its stream, answered or lost. The last one lets those that waited for it go on.
func (x *Exchange) back(t *task) {
	x.lanesMu.Lock()
	l := t.lane
	t.lane = nil
	if l == nil {
		x.lanesMu.Unlock()
		return
	}
	var stuck []*task
	if l.out--; l.out == 0 {
		if x.lanes[l.key] == l {
			delete(x.lanes, l.key)
		}
		for _, waiting := range l.queue {
			if len(stuck) > 0 || !x.submitLane(waiting) {
				stuck = append(stuck, waiting)
			}
		}
		l.queue, l.moving = nil, false
	}
	x.lanesMu.Unlock()
	for _, waiting := range stuck {
		waiting.placeSoon()
	}
}
