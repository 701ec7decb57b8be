package catalog

// Size returns how many queues are remembered once all that is over the bounds was dropped.
func (c *Catalog) Size() int {
	c.queues.CleanUp()
	return c.queues.EstimatedSize()
}
