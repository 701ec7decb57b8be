// Package stack is the composition root: all five services in one process, each as it is alone, joined by a network in memory.
//
// `postrider up` and `postrider host` run it; the five deployables do not. The same packages serve with the same interceptors either way.
package stack

import (
	"errors"
	"fmt"

	"postrider.dev/pkg/config"
	"postrider.dev/pkg/memnet"
	"postrider.dev/pkg/migrate"
	"postrider.dev/services/audit"
	"postrider.dev/services/dispatcher"
	"postrider.dev/services/ingress"
	"postrider.dev/services/meshhint"
	"postrider.dev/services/scheduler"
)

// Config is the configuration of each service. What joins them (internal and admin addresses) is set by Load.
type Config struct {
	// AdminAddr is the one admin listener of the process.
	AdminAddr string

	Ingress    ingress.Config
	Dispatcher dispatcher.Config
	Scheduler  scheduler.Config
	Audit      audit.Config
	Meshhint   meshhint.Config
}

// Addresses inside the process.
const (
	memDispatcher = memnet.Prefix + "dispatcher"
	memMeshhint   = memnet.Prefix + "meshhint"
	memScheduler  = memnet.Prefix + "scheduler"
	memAudit      = memnet.Prefix + "audit"
	memAdmin      = memnet.Prefix + "admin-" // and the service's name
)

// Load returns the configuration that the environment gives, on defaults for one process. It reports every problem of every service.
// The dispatcher listens in memory unless the environment names an address for it, as it must where several hosts are to reach one another.
func Load(environ []string) (Config, error) {
	d := Config{
		AdminAddr: config.Defaults().AdminAddr,
		Ingress:   ingress.Defaults(), Dispatcher: dispatcher.Defaults(), Scheduler: scheduler.Defaults(), Audit: audit.Defaults(), Meshhint: meshhint.Defaults(),
	}
	d.Dispatcher.Addr = memDispatcher
	var c Config
	var errs [5]error
	c.Ingress, errs[0] = config.Load("ingress", d.Ingress, environ)
	c.Dispatcher, errs[1] = config.Load("dispatcher", d.Dispatcher, environ)
	c.Scheduler, errs[2] = config.Load("scheduler", d.Scheduler, environ)
	c.Audit, errs[3] = config.Load("audit", d.Audit, environ)
	c.Meshhint, errs[4] = config.Load("meshhint", d.Meshhint, environ)
	c.AdminAddr = c.Meshhint.AdminAddr // the shared setting: each service read the same
	c.join()
	return c, errors.Join(errs[:]...)
}

// join sets what the services need to find one another in the process.
func (c *Config) join() {
	for name, common := range c.commons() {
		common.AdminAddr = memAdmin + name
	}
	if c.Dispatcher.Addr == memDispatcher { // nobody else can reach it; on a real address the node directory names it and its peers
		c.Ingress.DispatcherAddrs = []string{memDispatcher}
	}
	c.Ingress.MeshhintAddr = memMeshhint
	c.Dispatcher.MeshhintAddr = memMeshhint
	c.Meshhint.InternalAddr = memMeshhint
	c.Scheduler.Addr = memScheduler
	c.Audit.Addr = memAudit
}

// commons gives the shared part of each service's configuration, by name.
func (c *Config) commons() map[string]*config.Common {
	return map[string]*config.Common{
		"ingress": &c.Ingress.Common, "dispatcher": &c.Dispatcher.Common, "scheduler": &c.Scheduler.Common,
		"audit": &c.Audit.Common, "meshhint": &c.Meshhint.Common,
	}
}

// Shared sets what all services have in common.
func (c *Config) Shared(set func(*config.Common)) {
	for _, common := range c.commons() {
		set(common)
	}
	c.join()
}

// Validate reports every problem of every service.
func (c Config) Validate() error {
	var errs []error
	for _, s := range []struct {
		name string
		err  error
	}{
		{"ingress", c.Ingress.Validate()},
		{"dispatcher", c.Dispatcher.Validate()},
		{"scheduler", c.Scheduler.Validate()},
		{"audit", c.Audit.Validate()},
		{"meshhint", c.Meshhint.Validate()},
	} {
		if s.err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s.name, s.err))
		}
	}
	errs = append(errs, config.Address("ADMIN_ADDR", c.AdminAddr),
		config.NonLoopbackNeeds("ADMIN_ADDR", c.AdminAddr, "CLUSTER_SECRET", c.Meshhint.ClusterSecret))
	return errors.Join(errs...)
}

// Migrations are the schemas of all services, in an order in which none misses a function of another.
func Migrations() []migrate.Set {
	return []migrate.Set{audit.Migrations(), meshhint.Migrations(), ingress.Migrations(), dispatcher.Migrations(), scheduler.Migrations()}
}
