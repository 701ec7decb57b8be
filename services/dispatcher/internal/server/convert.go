package server

import (
	"strconv"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/invalid"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/store"
)

// patchOf turns a configure request into a patch. That names in reset are options is the patch's own rule.
func patchOf(o *queuev1.QueueOptions, reset []string) (queue.Patch, error) {
	p := queue.Patch{Set: queue.Options{
		MaxAttempts:     integer(o.GetMaxAttempts(), o != nil && o.MaxAttempts != nil),
		MaxMessageBytes: integer(o.GetMaxMessageBytes(), o != nil && o.MaxMessageBytes != nil),
		MaxGroups:       integer(o.GetMaxGroups(), o != nil && o.MaxGroups != nil),
		Shards:          integer(o.GetShards(), o != nil && o.Shards != nil),
		Lanes:           integer(o.GetLanes(), o != nil && o.Lanes != nil),

		RetentionBytes:   integer(o.GetRetentionBytes(), o != nil && o.RetentionBytes != nil),
		MaxQueueBytes:    integer(o.GetMaxQueueBytes(), o != nil && o.MaxQueueBytes != nil),
		MaxQueueMessages: integer(o.GetMaxQueueMessages(), o != nil && o.MaxQueueMessages != nil),
	}}
	if o != nil {
		p.Set.RetentionSettled, p.Set.Encryption, p.Set.Trace = o.RetentionSettled, o.Encryption, o.Trace
	}
	if o != nil && o.Compression != nil {
		p.Set.Compression = compressionFrom(o.GetCompression())
	}
	for _, d := range []struct {
		name  queue.Option
		given *durationpb.Duration
		into  **time.Duration
	}{
		{queue.OptLease, o.GetLease(), &p.Set.Lease},
		{queue.OptBackoffBase, o.GetBackoff(), &p.Set.BackoffBase},
		{queue.OptBackoffCap, o.GetBackoffMax(), &p.Set.BackoffCap},
		{queue.OptIdempotencyWindow, o.GetIdempotencyWindow(), &p.Set.IdempotencyWindow},
		{queue.OptRetention, o.GetRetention(), &p.Set.Retention},
		{queue.OptExpireAfter, o.GetExpireAfter(), &p.Set.ExpireAfter},
		{queue.OptDelay, o.GetDelay(), &p.Set.Delay},
	} {
		if d.given == nil {
			continue
		}
		if d.given.CheckValid() != nil {
			return queue.Patch{}, invalid.New(invalid.OutOfRange, string(d.name), "is no duration")
		}
		v := d.given.AsDuration()
		*d.into = &v
	}
	set := map[queue.Option]bool{
		queue.OptLease: p.Set.Lease != nil, queue.OptMaxAttempts: p.Set.MaxAttempts != nil, queue.OptBackoffBase: p.Set.BackoffBase != nil,
		queue.OptBackoffCap: p.Set.BackoffCap != nil, queue.OptMaxMessageBytes: p.Set.MaxMessageBytes != nil, queue.OptShards: p.Set.Shards != nil,
		queue.OptIdempotencyWindow: p.Set.IdempotencyWindow != nil, queue.OptMaxGroups: p.Set.MaxGroups != nil,
		queue.OptRetention: p.Set.Retention != nil, queue.OptRetentionBytes: p.Set.RetentionBytes != nil,
		queue.OptRetentionSettled: p.Set.RetentionSettled != nil, queue.OptExpireAfter: p.Set.ExpireAfter != nil,
		queue.OptMaxQueueBytes: p.Set.MaxQueueBytes != nil, queue.OptMaxQueueMessages: p.Set.MaxQueueMessages != nil,
		queue.OptCompression: p.Set.Compression != nil, queue.OptEncryption: p.Set.Encryption != nil, queue.OptLanes: p.Set.Lanes != nil,
		queue.OptTrace: p.Set.Trace != nil, queue.OptDelay: p.Set.Delay != nil,
	}
	for _, name := range reset {
		if set[queue.Option(name)] {
			return queue.Patch{}, invalid.New(invalid.OptionType, name, "is both given and reset")
		}
		p.Reset = append(p.Reset, queue.Option(name))
	}
	return p, nil
}

func integer[T int32 | int64](v T, given bool) *int {
	if !given {
		return nil
	}
	n := int(v)
	return &n
}

// optionsOf shows all options of a queue, defaults included.
func optionsOf(c queue.Config) *queuev1.QueueOptions {
	number := func(n int) *int32 {
		v := int32(n)
		return &v
	}
	return &queuev1.QueueOptions{
		Lease: durationpb.New(c.Lease), MaxAttempts: number(c.MaxAttempts), Backoff: durationpb.New(c.Backoff.Base),
		BackoffMax: durationpb.New(c.Backoff.Cap), MaxMessageBytes: number(c.MaxMessageBytes),
		IdempotencyWindow: durationpb.New(c.IdempotencyWindow), MaxGroups: number(c.MaxGroups), Shards: number(c.Shards),
		Retention: durationpb.New(c.Retention.Age), RetentionBytes: new(int64(c.Retention.Bytes)), RetentionSettled: new(c.Retention.Settled),
		ExpireAfter: durationpb.New(c.Retention.ExpireAfter), MaxQueueBytes: new(int64(c.Limits.Bytes)), MaxQueueMessages: new(int64(c.Limits.Messages)),
		Compression: compressionOf(c.Compression), Encryption: &c.Encryption, Lanes: number(c.Lanes), Trace: &c.Trace,
		Delay: durationpb.New(c.Delay),
	}
}

// compressionFrom reads a compression. A value that is none is left to the options' own check.
func compressionFrom(c queuev1.Compression) *queue.Compression {
	out := queue.Compression(c.String())
	switch c {
	case queuev1.Compression_COMPRESSION_UNSPECIFIED:
	case queuev1.Compression_COMPRESSION_ZSTD:
		out = queue.CompressionZstd
	case queuev1.Compression_COMPRESSION_NONE:
		out = queue.CompressionNone
	}
	return &out
}

func compressionOf(c queue.Compression) *queuev1.Compression {
	if c == queue.CompressionNone {
		return queuev1.Compression_COMPRESSION_NONE.Enum()
	}
	return queuev1.Compression_COMPRESSION_ZSTD.Enum()
}

// queueOf shows a queue with what it holds.
func queueOf(q store.Queue, s store.QueueStats, rate float64) *queuev1.Queue {
	return &queuev1.Queue{
		Id: strconv.FormatInt(q.ID, 10), Name: q.Name, Options: optionsOf(q.Config), ConfigVersion: q.ConfigVersion,
		CreatedAt: instant(q.CreatedAt), Messages: s.Messages, StoredBytes: s.StoredBytes, Depth: s.Depth, PushRate: rate,
		Groups: int32(s.Groups), DeadLetters: s.DeadLetters, Delayed: s.Delayed, Subscribers: s.Subscribers, Dropped: s.Dropped,
	}
}

// routeOf shows a route; nil if there is none.
func routeOf(r store.Route) *queuev1.Route {
	if r.Epoch == 0 {
		return nil
	}
	return &queuev1.Route{NodeId: r.NodeID, HostId: r.Host, Epoch: int64(r.Epoch), ClaimedAt: instant(r.ClaimedAt)}
}

func shardOf(q store.Queue, s store.ShardStats) *queuev1.Shard {
	return &queuev1.Shard{
		Id: strconv.FormatInt(int64(s.Shard), 10), Head: int64(s.Head), Tail: int64(s.Tail), LastPushAt: instant(s.LastPushAt),
		Priority: int32(q.PriorityOf(s.Shard)),
	}
}

func groupOf(c queue.Config, g store.Group, s store.GroupStats) *queuev1.Group {
	return &queuev1.Group{
		Name: g.Name, Mode: modeOf(g.Mode), OnFailure: onFailureOf(g.OnFailure), Start: g.Start.String(),
		Depth: s.Depth, Leased: s.Leased, Retrying: s.Retrying, DeadLetters: s.DeadLetters, LagMessages: s.Lag,
		Leases: int32(s.Leases), CreatedAt: instant(g.CreatedAt),
		Trimmed: s.Lost, FirstAvailable: s.FirstAvailable, LastActiveAt: instant(s.ActiveAt), Expired: s.Expired(c.Retention.ExpireAfter),
	}
}

// groupOptions reads what a caller says of a group; what it does not say is left open.
func groupOptions(o *queuev1.GroupOptions) (store.GroupOptions, error) {
	var out store.GroupOptions
	switch o.GetMode() {
	case queuev1.GroupMode_GROUP_MODE_UNSPECIFIED:
	case queuev1.GroupMode_GROUP_MODE_ORDERED:
		out.Mode = queue.Ordered
	case queuev1.GroupMode_GROUP_MODE_SHARED:
		out.Mode = queue.Shared
	default:
		return out, invalid.New(invalid.EnumUnknown, "mode", "%d is none of its values", o.GetMode())
	}
	switch o.GetOnFailure() {
	case queuev1.OnFailure_ON_FAILURE_UNSPECIFIED:
	case queuev1.OnFailure_ON_FAILURE_BLOCK:
		out.OnFailure = queue.Block
	case queuev1.OnFailure_ON_FAILURE_SKIP:
		out.OnFailure = queue.Skip
	default:
		return out, invalid.New(invalid.EnumUnknown, "on_failure", "%d is none of its values", o.GetOnFailure())
	}
	var err error
	if o.GetStart() != "" {
		out.Start, err = queue.ParseStart(o.GetStart())
	}
	return out, err
}

func modeOf(m queue.Mode) queuev1.GroupMode {
	switch m {
	case queue.Ordered:
		return queuev1.GroupMode_GROUP_MODE_ORDERED
	case queue.Shared:
		return queuev1.GroupMode_GROUP_MODE_SHARED
	}
	return queuev1.GroupMode_GROUP_MODE_UNSPECIFIED
}

func onFailureOf(f queue.OnFailure) queuev1.OnFailure {
	switch f {
	case queue.Block:
		return queuev1.OnFailure_ON_FAILURE_BLOCK
	case queue.Skip:
		return queuev1.OnFailure_ON_FAILURE_SKIP
	}
	return queuev1.OnFailure_ON_FAILURE_UNSPECIFIED
}

func partitionOf(q store.Queue, p store.Partition) *queuev1.Partition {
	return &queuev1.Partition{
		Name: p.Name, ShardId: strconv.FormatInt(int64(p.Shard), 10), FirstOffset: int64(p.FirstOffset), LastOffset: int64(p.LastOffset),
		LastSeenAt: instant(p.LastSeenAt), Priority: int32(q.PriorityOf(p.Shard)),
	}
}

func deadLetterOf(queueName string, d store.DeadLetter) *queuev1.DeadLetter {
	id := message.ID{Shard: d.Shard, Offset: d.Offset}.String()
	if d.Offset < 0 { // it never had a place in the log
		id = ""
	}
	return &queuev1.DeadLetter{
		Id: uuid.UUID(d.ID).String(), Queue: queueName, Group: d.Group, MessageId: id,
		Partition: d.Partition, Offset: int64(d.Offset), Payload: d.Payload, ContentType: d.ContentType, Headers: headersOf(d.Headers),
		ClientId: d.ClientID, Attempts: int32(d.Failures), Reason: deadReason(d),
		FailedAt: instant(d.FailedAt), RedrivenAt: instant(d.RedrivenAt), PayloadBytes: int32(d.PayloadBytes), Trimmed: d.Trimmed,
		Priority: int32(d.Priority),
	}
}

// deadReason is the last reason a consumer gave, or what happened in words.
func deadReason(d store.DeadLetter) string {
	if d.LastError != "" {
		return d.LastError
	}
	switch d.Reason {
	case "attempts":
		return "out of attempts"
	case "expired":
		return "the lease ran out, and the attempts were used up"
	case "rejected":
		return "rejected"
	case "trimmed":
		return "retention took it while it waited for a retry"
	}
	return d.Reason
}

// deadLetterID reads the one text a dead letter's id has.
func deadLetterID(field, text string) (store.DeadLetterID, error) {
	id, err := uuid.Parse(text)
	if err != nil || id.String() != text {
		return store.DeadLetterID{}, invalid.New(invalid.IDMalformed, field, "must be the id of a dead letter")
	}
	return store.DeadLetterID(id), nil
}

func headersOf(headers []message.Header) map[string]string {
	if len(headers) == 0 {
		return nil
	}
	out := make(map[string]string, len(headers))
	for _, h := range headers {
		out[h.Name] = h.Value
	}
	return out
}

// instant leaves out what never happened.
func instant(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
