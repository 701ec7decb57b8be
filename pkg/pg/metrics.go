package pg

import "github.com/prometheus/client_golang/prometheus"

// collector reads the pool's own counters at each scrape.
type collector struct {
	db                                                             *DB
	open, idle, busy, limit, acquires, waits, waited, opened, sent *prometheus.Desc
}

// NewCollector returns the pool's metrics, named prefix_db_pool_*.
func NewCollector(prefix string, db *DB) prometheus.Collector {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(prefix, "db_pool", name), help, nil, nil)
	}
	return &collector{
		db:       db,
		open:     desc("connections", "Connections open now."),
		idle:     desc("idle_connections", "Connections open and unused."),
		busy:     desc("busy_connections", "Connections in use."),
		limit:    desc("connections_limit", "Connections the pool may open."),
		acquires: desc("acquires_total", "Connections handed out."),
		waits:    desc("waits_total", "Hand-outs that had to wait because none was idle."),
		waited:   desc("wait_seconds_total", "Time spent waiting for a connection."),
		opened:   desc("opened_total", "Connections opened."),
		sent:     desc("statements_total", "Statements sent, those of batches each."),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	s := c.db.Stat()
	gauge := func(d *prometheus.Desc, v float64) { ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v) }
	count := func(d *prometheus.Desc, v float64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v)
	}
	gauge(c.open, float64(s.TotalConns()))
	gauge(c.idle, float64(s.IdleConns()))
	gauge(c.busy, float64(s.AcquiredConns()))
	gauge(c.limit, float64(s.MaxConns()))
	count(c.acquires, float64(s.AcquireCount()))
	count(c.waits, float64(s.EmptyAcquireCount()))
	count(c.waited, s.EmptyAcquireWaitTime().Seconds())
	count(c.opened, float64(s.NewConnsCount()))
	count(c.sent, float64(c.db.Statements()))
}
