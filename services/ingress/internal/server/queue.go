package server

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"postrider.dev/pkg/tenant"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

// queueService is the gRPC surface of queues: the hot verbs through the exchange, the others forwarded.
type queueService struct {
	queuev1.UnimplementedQueueServiceServer

	verbs *verbs
}

func (s *queueService) Push(ctx context.Context, req *queuev1.PushRequest) (*queuev1.PushResponse, error) {
	if err := pushKey(ctx, req); err != nil {
		return nil, err
	}
	return s.verbs.push(ctx, req, nil, false)
}

func (s *queueService) Pop(ctx context.Context, req *queuev1.PopRequest) (*queuev1.PopResponse, error) {
	resp, hold, err := s.verbs.pop(ctx, req, weightInProto)
	if err != nil {
		return nil, err
	}
	lease := resp.GetLease()
	if ctx.Err() != nil {
		hold.Release()
		s.verbs.undelivered(ctx, req, lease)
		return nil, context.Cause(ctx)
	}
	trackDelivery(ctx, hold, func() { s.verbs.undelivered(ctx, req, lease) })
	return resp, nil
}

func (s *queueService) Ack(ctx context.Context, req *queuev1.AckRequest) (*queuev1.AckResponse, error) {
	return s.verbs.ack(ctx, req)
}

func (s *queueService) Renew(ctx context.Context, req *queuev1.RenewRequest) (*queuev1.RenewResponse, error) {
	return s.verbs.renew(ctx, req)
}

func (s *queueService) Release(ctx context.Context, req *queuev1.ReleaseRequest) (*queuev1.ReleaseResponse, error) {
	return s.verbs.release(ctx, req)
}

// forward validates req and calls the dispatcher's control surface with it, for the caller of ctx. repeat allows a second dispatcher to be asked.
func forward[Req proto.Message, Resp any](
	ctx context.Context, v *verbs, queue string, repeat bool, req Req,
	call func(queuev1.QueueServiceClient, context.Context, Req, ...grpc.CallOption) (Resp, error),
) (resp Resp, err error) {
	if broken := v.rules.check(req); broken != nil {
		return resp, violation(broken)
	}
	caller, _ := tenant.CallerFrom(ctx)
	ctx, cancel := context.WithTimeout(ctx, v.timeout)
	defer cancel()
	err = v.exchange.Control(ctx, string(caller.Tenant), queue, repeat, func(ctx context.Context, c queuev1.QueueServiceClient) (err error) {
		resp, err = call(c, ctx, req)
		return err
	})
	return resp, wireError(err)
}

func (s *queueService) LookupMessage(ctx context.Context, req *queuev1.LookupMessageRequest) (*queuev1.LookupMessageResponse, error) {
	return asked(ctx, s.verbs, req, queuev1.QueueServiceClient.LookupMessage)
}

func (s *queueService) PeekMessages(ctx context.Context, req *queuev1.PeekMessagesRequest) (*queuev1.PeekMessagesResponse, error) {
	return asked(ctx, s.verbs, req, queuev1.QueueServiceClient.PeekMessages)
}

// DeleteMessage is not asked of a second dispatcher where the message is named by its producer: another may have the name by then.
func (s *queueService) DeleteMessage(ctx context.Context, req *queuev1.DeleteMessageRequest) (*queuev1.DeleteMessageResponse, error) {
	return change(ctx, s.verbs, req.GetQueue(), req.GetClientId() == "", req, queuev1.QueueServiceClient.DeleteMessage)
}

func (s *queueService) ConfigureQueue(ctx context.Context, req *queuev1.ConfigureQueueRequest) (*queuev1.ConfigureQueueResponse, error) {
	return change(ctx, s.verbs, req.GetQueue(), false, req, queuev1.QueueServiceClient.ConfigureQueue)
}

func (s *queueService) RotateQueueKey(ctx context.Context, req *queuev1.RotateQueueKeyRequest) (*queuev1.RotateQueueKeyResponse, error) {
	return change(ctx, s.verbs, req.GetQueue(), false, req, queuev1.QueueServiceClient.RotateQueueKey)
}

func (s *queueService) ListQueues(ctx context.Context, req *queuev1.ListQueuesRequest) (*queuev1.ListQueuesResponse, error) {
	return forward(ctx, s.verbs, "", true, req, queuev1.QueueServiceClient.ListQueues)
}

func (s *queueService) GetQueue(ctx context.Context, req *queuev1.GetQueueRequest) (*queuev1.GetQueueResponse, error) {
	return forward(ctx, s.verbs, req.GetQueue(), true, req, queuev1.QueueServiceClient.GetQueue)
}

func (s *queueService) DeleteQueue(ctx context.Context, req *queuev1.DeleteQueueRequest) (*queuev1.DeleteQueueResponse, error) {
	return change(ctx, s.verbs, req.GetQueue(), false, req, queuev1.QueueServiceClient.DeleteQueue)
}

func (s *queueService) ListPartitions(ctx context.Context, req *queuev1.ListPartitionsRequest) (*queuev1.ListPartitionsResponse, error) {
	return forward(ctx, s.verbs, req.GetQueue(), true, req, queuev1.QueueServiceClient.ListPartitions)
}

func (s *queueService) CreateGroup(ctx context.Context, req *queuev1.CreateGroupRequest) (*queuev1.CreateGroupResponse, error) {
	return change(ctx, s.verbs, req.GetQueue(), false, req, queuev1.QueueServiceClient.CreateGroup)
}

func (s *queueService) DeleteGroup(ctx context.Context, req *queuev1.DeleteGroupRequest) (*queuev1.DeleteGroupResponse, error) {
	return change(ctx, s.verbs, req.GetQueue(), false, req, queuev1.QueueServiceClient.DeleteGroup)
}

func (s *queueService) SeekGroup(ctx context.Context, req *queuev1.SeekGroupRequest) (*queuev1.SeekGroupResponse, error) {
	return change(ctx, s.verbs, req.GetQueue(), false, req, queuev1.QueueServiceClient.SeekGroup)
}

func (s *queueService) ListDeadLetters(ctx context.Context, req *queuev1.ListDeadLettersRequest) (*queuev1.ListDeadLettersResponse, error) {
	return asked(ctx, s.verbs, req, queuev1.QueueServiceClient.ListDeadLetters)
}

func (s *queueService) GetDeadLetter(ctx context.Context, req *queuev1.GetDeadLetterRequest) (*queuev1.GetDeadLetterResponse, error) {
	return asked(ctx, s.verbs, req, queuev1.QueueServiceClient.GetDeadLetter)
}

func (s *queueService) PurgeDeadLetters(ctx context.Context, req *queuev1.PurgeDeadLettersRequest) (*queuev1.PurgeDeadLettersResponse, error) {
	return change(ctx, s.verbs, req.GetQueue(), true, req, queuev1.QueueServiceClient.PurgeDeadLetters)
}

func (s *queueService) RedriveDeadLetters(ctx context.Context, req *queuev1.RedriveDeadLettersRequest) (*queuev1.RedriveDeadLettersResponse, error) {
	return change(ctx, s.verbs, req.GetQueue(), true, req, queuev1.QueueServiceClient.RedriveDeadLetters)
}
