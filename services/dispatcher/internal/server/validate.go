package server

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/invalid"
	"postrider.dev/services/dispatcher/internal/domain/queue"
)

// Bounds of requests that no option moves.
const (
	maxItems     = 1_000
	maxBody      = 32 << 20
	maxBatch     = 1_000
	maxWait      = time.Minute
	maxPage      = 1_000
	defaultPage  = 100
	maxToken     = 64 << 10
	maxClientIDs = 1_000
)

// firstOf returns the first error.
func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// validatePush checks what concerns the request as a whole. Items are each their own: the engine answers for them one by one.
func validatePush(r *queuev1.PushRequest) error {
	if err := firstOf(
		queue.CheckName("queue", r.GetQueue()),
		between("items", len(r.GetItems()), 1, maxItems),
		queue.CheckOptionalName("idempotency_key", r.GetIdempotencyKey()),
		known("require", int32(r.GetRequire()), queuev1.PushRequire_name),
	); err != nil {
		return err
	}
	bytes := 0
	for _, item := range r.GetItems() {
		bytes += len(item.GetPayload())
	}
	if bytes > maxBody {
		return invalid.New(invalid.MessageTooLarge, "items", "hold %d bytes, a request may hold %d", bytes, maxBody)
	}
	return nil
}

func validatePop(r *queuev1.PopRequest) error {
	if err := firstOf(
		queue.CheckName("queue", r.GetQueue()),
		queue.CheckOptionalName("group", r.GetGroup()),
		between("batch", int(r.GetBatch()), 0, maxBatch),
		between("max_bytes", int(r.GetMaxBytes()), 0, maxBody),
		span("wait", r.GetWait(), 0, maxWait),
		queue.CheckOptionalName("partition", r.GetPartition()),
		between("partitions", int(r.GetPartitions()), 0, maxBatch),
		span("lease", r.GetLease(), queue.MinLease, queue.MaxLease),
		queue.CheckOptionalName("consumer", r.GetConsumer()),
	); err != nil {
		return err
	}
	if _, err := groupOptions(r.GetGroupOptions()); err != nil {
		return err
	}
	s := r.GetSettle()
	if s == nil {
		return nil
	}
	if s.GetQueue() != "" && s.GetQueue() != r.GetQueue() {
		return invalid.New(invalid.OutOfRange, "settle.queue", "must be the queue of the pop, or empty")
	}
	return validateSettlements("settle.", s)
}

func validateAck(r *queuev1.AckRequest) error {
	return firstOf(queue.CheckName("queue", r.GetQueue()), validateSettlements("", r))
}

func validateSettlements(prefix string, r *queuev1.AckRequest) error {
	if err := firstOf(
		queue.CheckOptionalName(prefix+"group", r.GetGroup()),
		leaseText(prefix+"lease", r.GetLease(), false),
		between(prefix+"settlements", len(r.GetSettlements()), 0, maxItems),
	); err != nil {
		return err
	}
	if r.GetLease() == "" && r.GetAckRest() {
		return invalid.New(invalid.OutOfRange, prefix+"ack_rest", "needs a lease")
	}
	if len(r.GetSettlements()) == 0 && !r.GetAckRest() {
		return invalid.New(invalid.OutOfRange, prefix+"settlements", "must not be empty without ack_rest")
	}
	for i, s := range r.GetSettlements() {
		if err := validateSettlement(fmt.Sprintf("%ssettlements[%d].", prefix, i), s); err != nil {
			return err
		}
	}
	return nil
}

func validateSettlement(at string, s *queuev1.Settlement) error {
	if s.GetMessageId() == "" && s.GetClientId() == "" {
		return invalid.New(invalid.NameEmpty, at+"message_id", "or client_id must be given")
	}
	if s.GetMessageId() != "" && s.GetClientId() != "" {
		return invalid.New(invalid.OutOfRange, at+"client_id", "must not be given beside message_id")
	}
	if err := firstOf(
		queue.CheckOptionalName(at+"message_id", s.GetMessageId()),
		queue.CheckOptionalName(at+"client_id", s.GetClientId()),
		queue.CheckOptionalName(at+"partition", s.GetPartition()),
		known(at+"action", int32(s.GetAction()), queuev1.AckAction_name),
		span(at+"delay", s.GetDelay(), 0, queue.MaxDelay),
	); err != nil {
		return err
	}
	if s.GetDelay() != nil && s.GetAction() != queuev1.AckAction_ACK_ACTION_NACK {
		return invalid.New(invalid.OutOfRange, at+"delay", "goes with nack only")
	}
	return nil
}

func validateRenew(r *queuev1.RenewRequest) error {
	return firstOf(
		queue.CheckName("queue", r.GetQueue()),
		leaseText("lease", r.GetLease(), true),
		span("duration", r.GetDuration(), queue.MinLease, queue.MaxLease),
	)
}

func validateRelease(r *queuev1.ReleaseRequest) error {
	if err := firstOf(
		queue.CheckName("queue", r.GetQueue()),
		leaseText("lease", r.GetLease(), true),
		between("message_ids", len(r.GetMessageIds()), 0, maxItems),
	); err != nil {
		return err
	}
	for i, id := range r.GetMessageIds() {
		if err := queue.CheckName(fmt.Sprintf("message_ids[%d]", i), id); err != nil {
			return err
		}
	}
	return nil
}

// leaseText bounds a lease's token; what is in it is the domain's business.
func leaseText(field, token string, required bool) error {
	switch {
	case token == "" && required:
		return invalid.New(invalid.NameEmpty, field, "must not be empty")
	case len(token) > maxToken:
		return invalid.New(invalid.TokenMalformed, field, "is too long")
	}
	return nil
}

func between(field string, n, low, high int) error {
	if n < low || n > high {
		return invalid.New(invalid.OutOfRange, field, "is %d, must be %d to %d", n, low, high)
	}
	return nil
}

// span accepts an absent duration, and one within bounds.
func span(field string, d *durationpb.Duration, low, high time.Duration) error {
	if d == nil {
		return nil
	}
	if v := d.AsDuration(); d.CheckValid() != nil || v < low || v > high {
		return invalid.New(invalid.OutOfRange, field, "is %d.%09d s, must be %v to %v", d.GetSeconds(), d.GetNanos(), low, high)
	}
	return nil
}

// known refuses a number that the contract gives no name.
func known(field string, value int32, names map[int32]string) error {
	if _, ok := names[value]; !ok {
		return invalid.New(invalid.EnumUnknown, field, "%d is none of its values", value)
	}
	return nil
}

// pageSize resolves a page's size.
func pageSize(n int32) (int, error) {
	if n == 0 {
		return defaultPage, nil
	}
	return int(n), between("page_size", int(n), 1, maxPage)
}
