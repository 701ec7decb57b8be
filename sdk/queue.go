package postrider

import (
	"context"
	"crypto/rand"
	"iter"

	"google.golang.org/grpc/metadata"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

// Configure creates a queue or merges options into it; the options named in reset take their defaults again.
func (c *Client) Configure(ctx context.Context, queue string, options *queuev1.QueueOptions, reset ...string) (*queuev1.Queue, error) {
	ctx = once(ctx)
	resp, err := again(ctx, func() (*queuev1.ConfigureQueueResponse, error) {
		return c.queues.ConfigureQueue(ctx, &queuev1.ConfigureQueueRequest{Queue: queue, Options: options, Reset_: reset})
	})
	return resp.GetQueue(), err
}

// Queue shows a queue with its shards and groups.
func (c *Client) Queue(ctx context.Context, queue string) (*queuev1.GetQueueResponse, error) {
	return again(ctx, func() (*queuev1.GetQueueResponse, error) {
		return c.queues.GetQueue(ctx, &queuev1.GetQueueRequest{Queue: queue})
	})
}

// QueueList yields the tenant's queues whose names begin with prefix, by name. It ends after the first error.
func (c *Client) QueueList(ctx context.Context, prefix string) iter.Seq2[*queuev1.Queue, error] {
	return pages(func(token string) ([]*queuev1.Queue, string, error) {
		resp, err := again(ctx, func() (*queuev1.ListQueuesResponse, error) {
			return c.queues.ListQueues(ctx, &queuev1.ListQueuesRequest{Prefix: prefix, PageToken: token})
		})
		return resp.GetQueues(), resp.GetNextPageToken(), err
	})
}

// Partitions yields the partitions of a queue, by name. It ends after the first error.
func (c *Client) Partitions(ctx context.Context, queue string) iter.Seq2[*queuev1.Partition, error] {
	return pages(func(token string) ([]*queuev1.Partition, string, error) {
		resp, err := again(ctx, func() (*queuev1.ListPartitionsResponse, error) {
			return c.queues.ListPartitions(ctx, &queuev1.ListPartitionsRequest{Queue: queue, PageToken: token})
		})
		return resp.GetPartitions(), resp.GetNextPageToken(), err
	})
}

// DeleteQueue deletes a queue; force deletes it although messages are leased.
func (c *Client) DeleteQueue(ctx context.Context, queue string, force bool) error {
	ctx = once(ctx)
	_, err := again(ctx, func() (*queuev1.DeleteQueueResponse, error) {
		return c.queues.DeleteQueue(ctx, &queuev1.DeleteQueueRequest{Queue: queue, Force: force})
	})
	return err
}

// CreateGroup creates a consumer group before its first pop, so that a start of "latest" means now.
func (c *Client) CreateGroup(ctx context.Context, queue, group string, options *queuev1.GroupOptions) (*queuev1.Group, error) {
	ctx = once(ctx)
	resp, err := again(ctx, func() (*queuev1.CreateGroupResponse, error) {
		return c.queues.CreateGroup(ctx, &queuev1.CreateGroupRequest{Queue: queue, Group: group, Options: options})
	})
	return resp.GetGroup(), err
}

// DeleteGroup frees a group's state; its leases are worth nothing afterwards.
func (c *Client) DeleteGroup(ctx context.Context, queue, group string) error {
	ctx = once(ctx)
	_, err := again(ctx, func() (*queuev1.DeleteGroupResponse, error) {
		return c.queues.DeleteGroup(ctx, &queuev1.DeleteGroupRequest{Queue: queue, Group: group})
	})
	return err
}

// Seek moves a group, or one partition of it, to a place in the log: back to get messages again, forward to skip them. What is leased then is fenced off.
func (c *Client) Seek(ctx context.Context, queue, group string, to Place) (*queuev1.SeekGroupResponse, error) {
	ctx = once(ctx)
	return again(ctx, func() (*queuev1.SeekGroupResponse, error) {
		return c.queues.SeekGroup(ctx, &queuev1.SeekGroupRequest{
			Queue: queue, Group: group, Partition: to.Partition, To: to.At, Offsets: to.Offsets,
		})
	})
}

// RotateKey gives an encrypted queue a new data key, which seals what is stored from then on.
func (c *Client) RotateKey(ctx context.Context, queue string) (*queuev1.RotateQueueKeyResponse, error) {
	ctx = once(ctx)
	return again(ctx, func() (*queuev1.RotateQueueKeyResponse, error) {
		return c.queues.RotateQueueKey(ctx, &queuev1.RotateQueueKeyRequest{Queue: queue})
	})
}

// Place is where a group is to stand: At or Offsets.
type Place struct {
	Partition string  // only this one; empty: the whole queue
	At        string  // "earliest", "latest" or an RFC 3339 time
	Offsets   []int64 // one for each shard; with a partition those of its shard in each lane
}

// Lookup finds the newest message with a client id in a partition.
func (c *Client) Lookup(ctx context.Context, queue, partition, clientID string) (*queuev1.LookupMessageResponse, error) {
	return again(ctx, func() (*queuev1.LookupMessageResponse, error) {
		return c.queues.LookupMessage(ctx, &queuev1.LookupMessageRequest{Queue: queue, Partition: partition, ClientId: clientID})
	})
}

// LookupID finds a message by the id that its push was answered: its place in the log, or, if it was delayed, its pending id.
func (c *Client) LookupID(ctx context.Context, queue, messageID string) (*queuev1.LookupMessageResponse, error) {
	return again(ctx, func() (*queuev1.LookupMessageResponse, error) {
		return c.queues.LookupMessage(ctx, &queuev1.LookupMessageRequest{Queue: queue, MessageId: messageID})
	})
}

// Trace is LookupID with where the message stands in each group, or in one if a group is given. A message that was trimmed is found too.
func (c *Client) Trace(ctx context.Context, queue, messageID, group string) (*queuev1.LookupMessageResponse, error) {
	return again(ctx, func() (*queuev1.LookupMessageResponse, error) {
		return c.queues.LookupMessage(ctx, &queuev1.LookupMessageRequest{Queue: queue, MessageId: messageID, Trace: true, Group: group})
	})
}

// DeleteMessage takes one message away for everybody: every group has settled it, and nobody is shown it. The id is the one that its push was answered: a message
// that waits for its time is cancelled, and never comes. Deleting it again is answered the same.
func (c *Client) DeleteMessage(ctx context.Context, queue, messageID string) (*queuev1.DeleteMessageResponse, error) {
	return c.deleteMessage(ctx, &queuev1.DeleteMessageRequest{Queue: queue, MessageId: messageID})
}

// DeleteNamed is DeleteMessage for the newest message with a client id in a partition.
func (c *Client) DeleteNamed(ctx context.Context, queue, partition, clientID string) (*queuev1.DeleteMessageResponse, error) {
	return c.deleteMessage(ctx, &queuev1.DeleteMessageRequest{Queue: queue, Partition: partition, ClientId: clientID})
}

func (c *Client) deleteMessage(ctx context.Context, req *queuev1.DeleteMessageRequest) (*queuev1.DeleteMessageResponse, error) {
	ctx = once(ctx)
	return again(ctx, func() (*queuev1.DeleteMessageResponse, error) { return c.queues.DeleteMessage(ctx, req) })
}

// TraceEvents are the events that a queue with the option trace recorded of a message, in order, and the token of the next page: empty if those were all.
func (c *Client) TraceEvents(ctx context.Context, queue, messageID, group, pageToken string) (events []*queuev1.TraceEvent, next string, err error) {
	resp, err := again(ctx, func() (*queuev1.LookupMessageResponse, error) {
		return c.queues.LookupMessage(ctx, &queuev1.LookupMessageRequest{
			Queue: queue, MessageId: messageID, Trace: true, Group: group, PageSize: maxTraceEvents, PageToken: pageToken,
		})
	})
	return resp.GetTraceEvents(), resp.GetNextPageToken(), err
}

// maxTraceEvents is the most that one call tells of.
const maxTraceEvents = 1_000

// Peek shows messages of a queue as they are in the log: nobody gets a lease and nothing changes. Go on from NextOffset until it is Head.
func (c *Client) Peek(ctx context.Context, queue string, look Look) (*queuev1.PeekMessagesResponse, error) {
	req := &queuev1.PeekMessagesRequest{Queue: queue, Partition: look.Partition, From: look.From, Limit: int32(look.Limit), MaxBytes: int32(look.MaxBytes)}
	if look.Shard != 0 {
		req.Shard = new(int32(look.Shard))
	}
	if look.Priority != 0 {
		req.Priority = &look.Priority
	}
	return again(ctx, func() (*queuev1.PeekMessagesResponse, error) { return c.queues.PeekMessages(ctx, req) })
}

// Look is where to peek, and how far. Its zero value is the first messages of the first shard.
type Look struct {
	Shard     int    // index; not beside a partition
	Partition string // only this one, in its shard
	Priority  int32  // with a partition: in which lane
	From      string // "earliest", "latest" for the last ones there are, or an offset
	Limit     int    // default 10
	MaxBytes  int    // default 4 MiB
}

// DeadLetters yields a queue's dead letters, of one group or of all when group is empty, oldest first, without payloads.
func (c *Client) DeadLetters(ctx context.Context, queue, group string) iter.Seq2[*queuev1.DeadLetter, error] {
	return pages(func(token string) ([]*queuev1.DeadLetter, string, error) {
		resp, err := again(ctx, func() (*queuev1.ListDeadLettersResponse, error) {
			return c.queues.ListDeadLetters(ctx, &queuev1.ListDeadLettersRequest{Queue: queue, Group: group, PageToken: token})
		})
		return resp.GetDeadLetters(), resp.GetNextPageToken(), err
	})
}

// Redrive appends dead letters to their queue again, by id. Each is redriven once, however often it is asked.
func (c *Client) Redrive(ctx context.Context, queue string, ids ...string) (*queuev1.RedriveDeadLettersResponse, error) {
	return c.RedriveAs(ctx, &queuev1.RedriveDeadLettersRequest{Queue: queue, Ids: ids})
}

// Purge deletes dead letters for good, by id. Those that were redriven stay; PurgeAs takes them too, if asked.
func (c *Client) Purge(ctx context.Context, queue string, ids ...string) (*queuev1.PurgeDeadLettersResponse, error) {
	return c.PurgeAs(ctx, &queuev1.PurgeDeadLettersRequest{Queue: queue, Ids: ids})
}

// PurgeAs is Purge with the full request, for example all dead letters of a group that failed before some day. A call deletes at most 1,000: call again
// while the answer says that there is more.
func (c *Client) PurgeAs(ctx context.Context, req *queuev1.PurgeDeadLettersRequest) (*queuev1.PurgeDeadLettersResponse, error) {
	ctx = once(ctx)
	return again(ctx, func() (*queuev1.PurgeDeadLettersResponse, error) { return c.queues.PurgeDeadLetters(ctx, req) })
}

// once gives a call a key of its own, so that repeating it after a lost answer does not do it twice: the server answers what it answered first.
func once(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "idempotency-key", rand.Text())
}

// pages yields the items of all pages.
func pages[T any](page func(token string) ([]T, string, error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for token := ""; ; {
			items, next, err := page(token)
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			for _, item := range items {
				if !yield(item, nil) {
					return
				}
			}
			if next == "" {
				return
			}
			token = next
		}
	}
}

// DeadLetter shows one dead letter with its payload.
func (c *Client) DeadLetter(ctx context.Context, queue, id string) (*queuev1.DeadLetter, error) {
	resp, err := again(ctx, func() (*queuev1.GetDeadLetterResponse, error) {
		return c.queues.GetDeadLetter(ctx, &queuev1.GetDeadLetterRequest{Queue: queue, Id: id})
	})
	return resp.GetDeadLetter(), err
}

// RedriveAs is Redrive with the full request, for example all dead letters of a group.
func (c *Client) RedriveAs(ctx context.Context, req *queuev1.RedriveDeadLettersRequest) (*queuev1.RedriveDeadLettersResponse, error) {
	ctx = once(ctx)
	return again(ctx, func() (*queuev1.RedriveDeadLettersResponse, error) { return c.queues.RedriveDeadLetters(ctx, req) })
}
