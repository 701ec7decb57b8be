package engine

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"postrider.dev/services/dispatcher/internal/spool"
)

// metrics are the engine's figures. None has a tenant or queue label.
type metrics struct {
	flushes, flushRetries, bisections   prometheus.Counter
	flushMessages                       prometheus.Histogram
	pushed, duplicates, delayed, due    prometheus.Counter
	workCommits, workLost, workSlow     prometheus.Counter
	workRetries, workNotYet             prometheus.Counter
	deliveries, acked, nacked           prometheus.Counter
	deadLetters, reclaimed, undelivered prometheus.Counter
	wakes, wakeMisses, polls, loads     prometheus.Counter
	evictions                           prometheus.Counter
	parked, popsOpen, tails             prometheus.Gauge
	queuedBytes, queued                 prometheus.Gauge
	frontierStops, keyMissing, withheld prometheus.Counter
	full, dropped                       prometheus.Counter
	transacted, txRefused               prometheus.Counter
	spooled, spoolDrained, spoolRefused prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	count := func(name, help string) prometheus.Counter {
		return f.NewCounter(prometheus.CounterOpts{Namespace: "postrider", Subsystem: "dispatcher", Name: name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return f.NewGauge(prometheus.GaugeOpts{Namespace: "postrider", Subsystem: "dispatcher", Name: name, Help: help})
	}
	return &metrics{
		flushes:      count("flushes_total", "Group commits of pushes."),
		flushRetries: count("flush_retries_total", "Group commits of pushes that were tried again."),
		bisections:   count("flush_bisections_total", "Batches of pushes cut in two because the database refused a value in them."),
		flushMessages: f.NewHistogram(prometheus.HistogramOpts{
			Namespace: "postrider", Subsystem: "dispatcher", Name: "flush_messages", Help: "Messages a group commit.",
			Buckets: prometheus.ExponentialBuckets(1, 4, 9),
		}),
		pushed:        count("messages_pushed_total", "Messages appended."),
		duplicates:    count("messages_duplicate_total", "Messages not appended because their idempotency key was seen."),
		delayed:       count("messages_delayed_total", "Messages accepted for later."),
		due:           count("messages_due_total", "Messages that came due and were appended."),
		workCommits:   count("work_commits_total", "Changes of a group-shard that were applied."),
		workLost:      count("work_lost_total", "Changes of a group-shard that met another version."),
		workSlow:      count("work_slow_total", "Changes of a group-shard made under its row lock."),
		workRetries:   count("work_retries_total", "Work transactions that were tried again."),
		workNotYet:    count("work_not_yet_total", "Changes put off because the database's clock was behind this process's guess."),
		deliveries:    count("deliveries_total", "Messages handed out."),
		acked:         count("deliveries_acked_total", "Messages acked."),
		nacked:        count("deliveries_nacked_total", "Messages nacked."),
		deadLetters:   count("dead_letters_total", "Messages that became dead letters."),
		reclaimed:     count("deliveries_reclaimed_total", "Messages taken back from leases that ran out."),
		undelivered:   count("deliveries_undelivered_total", "Messages given back because their answer could not be sent."),
		wakes:         count("wakes_total", "Parked pops woken."),
		wakeMisses:    count("wake_misses_total", "Parked pops woken for nothing."),
		polls:         count("polls_total", "Shared polls."),
		loads:         count("view_loads_total", "Views read from the database."),
		evictions:     count("view_evictions_total", "Views dropped to make room."),
		parked:        gauge("parked_pops", "Pops that wait for messages."),
		popsOpen:      gauge("pops_open", "Pops that are not answered yet."),
		tails:         gauge("log_tails", "Logs followed for ingresses that have subscribers."),
		queuedBytes:   gauge("queued_push_bytes", "Bytes of pushes that wait for a commit."),
		queued:        gauge("queued_requests", "Requests that wait for a commit."),
		full:          count("pushes_full_total", "Pushes refused because their queue was full."),
		dropped:       count("messages_dropped_total", "Messages that retention took before a group had settled them, once for each such group."),
		spooled:       count("messages_spooled_total", "Messages buffered on this host's disk."),
		spoolDrained:  count("spool_drained_total", "Requests brought from the spool into the log."),
		spoolRefused:  count("spool_refused_total", "Buffered messages that their queue did not take: they are dead letters."),
		transacted:    count("transactions_total", "Transactions that were committed."),
		txRefused:     count("transactions_refused_total", "Transactions of which nothing was done because an operation was refused."),
		keyMissing:    count("encryption_key_missing_total", "Requests refused because the key of their encrypted queue is missing."),
		withheld:      count("delayed_withheld_total", "Times that the due messages of a shard were left where they wait because one of them is damaged."),
		frontierStops: count("frontier_stops_total", "Pops that got nothing although there are messages, because a bound of the view was reached."),
	}
}

// watch adds the figures that are read at each scrape.
func (m *metrics) watch(reg prometheus.Registerer, e *Engine) {
	f := promauto.With(reg)
	gauge := func(name, help string, read func() float64) {
		f.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "postrider", Subsystem: "dispatcher", Name: name, Help: help}, read)
	}
	gauge("view_bytes", "Memory of all views.", func() float64 { return float64(e.views.total()) })
	gauge("directory_cache_bytes", "Memory of cached segment directories.", func() float64 {
		directories, _ := e.segments.Bytes()
		return float64(directories)
	})
	gauge("body_cache_bytes", "Memory of cached segment bodies.", func() float64 {
		_, bodies := e.segments.Bytes()
		return float64(bodies)
	})
	stat := func(name, help string, read func(spool.Stats) float64) {
		gauge(name, help, func() float64 {
			state, _ := e.Spool() // zero where there is none
			return read(state.Stats)
		})
	}
	stat("spool_bytes", "Bytes of the spool on disk.", func(s spool.Stats) float64 { return float64(s.Bytes) })
	stat("spool_records", "Requests in the spool that wait to be drained.", func(s spool.Stats) float64 { return float64(s.Records) })
	stat("spool_torn_bytes", "Bytes cut off the end of the spool at the start.", func(s spool.Stats) float64 { return float64(s.TornBytes) })
	stat("spool_damage", "Places of the spool where acknowledged bytes could not be read.", func(s spool.Stats) float64 { return float64(s.Damage) })
	stat("spool_damaged_files", "Files of the spool that are kept because of damage.", func(s spool.Stats) float64 { return float64(s.DamagedFiles) })
	stat("spool_failures", "Writes and fsyncs of the spool that failed since the start.", func(s spool.Stats) float64 { return float64(s.Failures) })
	gauge("spool_blocked_records", "Of the requests in the spool, those of encrypted queues whose key is missing here.", func() float64 {
		state, _ := e.Spool()
		return float64(state.Blocked)
	})
	gauge("spool_oldest_seconds", "Age of the oldest request in the spool.", e.spool.age)
	gauge("database_away", "1 while pushes go to the spool because the database is away.", func() float64 {
		if e.spool.isAway() {
			return 1
		}
		return 0
	})
}
