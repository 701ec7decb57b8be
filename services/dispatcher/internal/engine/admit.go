package engine

import (
	"context"
	"errors"
	"slices"

	"postrider.dev/services/dispatcher/internal/domain/segment"
	"postrider.dev/services/dispatcher/internal/domain/window"
)

const (
	// admitChunk is how many messages one plan admits beyond the first that is ready: enough for a batch, and no walk through the whole log.
	admitChunk = 4096
	// searchSteps is how many cached segments are looked through for a partition before a search in the database is the better way.
	searchSteps = 256
	// directoryRead is how many messages' directories one read brings.
	directoryRead = 16_384
	// searchSegments is how many segments one search for a partition brings.
	searchSegments = 64
)

// errNotCached says that a directory must be read from the database.
var errNotCached = errors.New("directory is not in memory")

// wants is what the pops at hand need of the log.
type wants struct {
	keys  int     // ready partitions
	named []named // partitions asked for by name
	all   bool    // everything up to the head, to see which named ones are there
}

// named is what one pop wants of one partition.
type named struct {
	hash uint64
	most int // messages
}

// stretch is what a source found for a need: directories in order, and the offset below which everything was looked at.
type stretch struct {
	directories []segment.Directory
	upto        window.Offset
}

type source func(need window.Need) (stretch, error)

func wantsOf(requests []*request) wants {
	var w wants
	for _, r := range requests {
		p, ok := r.want.(*window.Pop)
		switch {
		case !ok:
		case p.Named:
			w.named = append(w.named, named{p.Hash, p.MaxMessages})
		case p.MaxPartitions > 0:
			w.keys += p.MaxPartitions
		default:
			w.keys += p.MaxMessages
		}
	}
	return w
}

// feeding adds what the parked pops would want.
func (w wants) feeding(g *group) wants {
	anyone, named := g.waiters()
	w.keys += min(anyone, feedLimit)
	w.all = named > 0
	return w
}

// admit admits what is needed and in memory. It returns false if something must be read first.
func (g *gshard) admit(w wants) bool {
	return g.admitFrom(w, g.cached) == nil
}

// admitReading admits what is needed for everything that is pending, reading what is not in memory.
func (g *gshard) admitReading(ctx context.Context) error {
	g.mu.Lock()
	pending, feed := slices.Clone(g.pending), g.feed
	g.mu.Unlock()
	w := wantsOf(pending)
	if feed {
		w = w.feeding(g.grp)
	}
	return g.admitFrom(w, func(need window.Need) (stretch, error) {
		found, err := g.cached(need)
		if errors.Is(err, errNotCached) {
			return g.read(ctx, need)
		}
		return found, err
	})
}

func (g *gshard) admitFrom(w wants, from source) error {
	g.view.Advance(g.grp.e.dbtime.now())
	head := window.Offset(g.shard.head.Load())
	for admitted := 0; w.keys > 0 || w.all; {
		ready, _ := g.view.Ready()
		if !w.all && ready >= w.keys || ready > 0 && admitted >= admitChunk {
			break
		}
		need, ok := g.view.Need(head)
		if !ok {
			break
		}
		n, err := g.satisfy(need, from)
		if err != nil {
			return err
		}
		if n == 0 {
			break // no progress: the view is full
		}
		admitted += n
	}
	for _, want := range w.named {
		if err := g.admitNamed(want, head, from); err != nil {
			return err
		}
	}
	return nil
}

// admitNamed goes on until the pop of one partition is filled, the log is at its end, or the view takes no more.
func (g *gshard) admitNamed(want named, head window.Offset, from source) error {
	for asked := window.Offset(-1); ; {
		need, ok := g.view.NeedKey(want.hash, head, want.most)
		if !ok || need.From == asked {
			return nil
		}
		asked = need.From
		if n, err := g.satisfy(need, from); n == 0 || err != nil {
			return err
		}
	}
}

// satisfy gives the view what a need asks for. It returns 0 if the view learned nothing.
func (g *gshard) satisfy(need window.Need, from source) (int, error) {
	found, err := from(need)
	if err != nil {
		return 0, err
	}
	n := 0
	at := need.From
	for _, d := range found.directories {
		if d.Base > at {
			g.skip(need, at, d.Base)
			n++
		}
		if g.give(need, d) {
			n += d.Len()
		}
		at = max(at, d.End())
	}
	if found.upto > at {
		g.skip(need, at, found.upto)
		n++
	}
	return n, nil
}

func (g *gshard) give(need window.Need, d segment.Directory) bool {
	if need.Keyed {
		return g.view.AdmitKey(need.Hash, d)
	}
	return g.view.Admit(d)
}

// skip tells the view that nothing it needs lies in between.
func (g *gshard) skip(need window.Need, from, to window.Offset) {
	if need.Keyed {
		g.view.SkipKey(need.Hash, from, to)
	} else {
		g.view.Skip(from, to)
	}
}

// cached looks a need up in the segment cache.
func (g *gshard) cached(need window.Need) (stretch, error) {
	cache := g.grp.e.segments
	if !need.Keyed {
		d, ok := cache.Directory(g.shard.id, need.From)
		if !ok {
			return stretch{}, errNotCached
		}
		return stretch{directories: []segment.Directory{d}, upto: d.End()}, nil
	}
	at := need.From
	for range searchSteps {
		if at >= need.To {
			break
		}
		d, ok := cache.Directory(g.shard.id, at)
		if !ok {
			break
		}
		at = min(d.End(), max(need.To, at))
		if slices.Contains(d.Hashes[max(0, need.From-d.Base):], need.Hash) {
			return stretch{directories: []segment.Directory{d}, upto: at}, nil
		}
	}
	if at == need.From {
		return stretch{}, errNotCached
	}
	return stretch{upto: at}, nil
}

// read looks a need up in the database, and remembers what it finds.
func (g *gshard) read(ctx context.Context, need window.Need) (stretch, error) {
	e := g.grp.e
	ctx, cancel := context.WithTimeout(ctx, e.cfg.StatementTimeout)
	defer cancel()
	var found stretch
	var err error
	if need.Keyed {
		found.directories, found.upto, err = e.db.SearchPartition(ctx, g.shard.id, need.Hash, need.From, need.To, searchSegments)
	} else {
		found.directories, err = e.db.Directories(ctx, g.shard.id, need.From, need.To, directoryRead)
		found.upto = need.To
		if n := len(found.directories); n > 0 {
			found.upto = found.directories[n-1].End()
		}
	}
	for _, d := range found.directories {
		e.segments.PutDirectory(g.shard.id, d)
	}
	return found, err
}

// mayServe says whether a parked pop of one partition is worth a plan.
func (g *gshard) mayServe(hash uint64) bool {
	k := g.view.Key(hash)
	if k.Ready || k.Leased == 0 && k.Known < g.view.Reach(window.Offset(g.shard.head.Load())) {
		return true
	}
	if k.Waiting == 0 && k.Leased == 0 {
		return false
	}
	now := g.grp.e.dbtime.now()
	due, ok := g.view.NextWake()
	return ok && due <= now && (k.Leased > 0 || k.RetryAt <= now)
}
