// Package postrider is the Go client of Postrider.
//
//	c, err := postrider.Dial([]string{"localhost:7401"}, key)
//	results, err := c.Push(ctx, "orders", postrider.Message{Partition: "customer-7", Payload: body})
//	err = c.Consume(ctx, "orders", func(ctx context.Context, d *postrider.Delivery) error { ... }, postrider.ConsumeOptions{Group: "billing"})
//	err = c.Subscribe(ctx, "orders", func(ctx context.Context, m *postrider.SubscribedMessage) error { ... }, postrider.SubscribeOptions{})
//
// A Client may be given several addresses. It talks to one of them and moves to the next, with jittered backoff, when that one is lost or
// draining. Operations whose outcome is known to be "not done" are tried again elsewhere until their context ends; one whose outcome is unknown is
// tried again only if that cannot do harm: a push whose messages have idempotency keys, a read, a pop (what an unanswered pop leased comes back
// when its lease runs out), an ack (a repeated ack answers "already settled"). Else the caller gets an error that matches ErrOutcomeUnknown.
//
// All methods are safe for concurrent use.
package postrider
