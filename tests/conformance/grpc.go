package conformance

import (
	"context"

	adminv1 "postrider.dev/proto/gen/postrider/admin/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

func (c overGRPC) Push(ctx context.Context, req *queuev1.PushRequest) (*queuev1.PushResponse, error) {
	return c.queue.Push(ctx, req)
}

func (c overGRPC) Pop(ctx context.Context, req *queuev1.PopRequest) (*queuev1.PopResponse, error) {
	return c.queue.Pop(ctx, req)
}

func (c overGRPC) Ack(ctx context.Context, req *queuev1.AckRequest) (*queuev1.AckResponse, error) {
	return c.queue.Ack(ctx, req)
}

func (c overGRPC) Renew(ctx context.Context, req *queuev1.RenewRequest) (*queuev1.RenewResponse, error) {
	return c.queue.Renew(ctx, req)
}

func (c overGRPC) Release(ctx context.Context, req *queuev1.ReleaseRequest) (*queuev1.ReleaseResponse, error) {
	return c.queue.Release(ctx, req)
}

func (c overGRPC) LookupMessage(ctx context.Context, req *queuev1.LookupMessageRequest) (*queuev1.LookupMessageResponse, error) {
	return c.queue.LookupMessage(ctx, req)
}

func (c overGRPC) DeleteMessage(ctx context.Context, req *queuev1.DeleteMessageRequest) (*queuev1.DeleteMessageResponse, error) {
	return c.queue.DeleteMessage(ctx, req)
}

func (c overGRPC) PeekMessages(ctx context.Context, req *queuev1.PeekMessagesRequest) (*queuev1.PeekMessagesResponse, error) {
	return c.queue.PeekMessages(ctx, req)
}

func (c overGRPC) ConfigureQueue(ctx context.Context, req *queuev1.ConfigureQueueRequest) (*queuev1.ConfigureQueueResponse, error) {
	return c.queue.ConfigureQueue(ctx, req)
}

func (c overGRPC) ListQueues(ctx context.Context, req *queuev1.ListQueuesRequest) (*queuev1.ListQueuesResponse, error) {
	return c.queue.ListQueues(ctx, req)
}

func (c overGRPC) GetQueue(ctx context.Context, req *queuev1.GetQueueRequest) (*queuev1.GetQueueResponse, error) {
	return c.queue.GetQueue(ctx, req)
}

func (c overGRPC) DeleteQueue(ctx context.Context, req *queuev1.DeleteQueueRequest) (*queuev1.DeleteQueueResponse, error) {
	return c.queue.DeleteQueue(ctx, req)
}

func (c overGRPC) ListPartitions(ctx context.Context, req *queuev1.ListPartitionsRequest) (*queuev1.ListPartitionsResponse, error) {
	return c.queue.ListPartitions(ctx, req)
}

func (c overGRPC) CreateGroup(ctx context.Context, req *queuev1.CreateGroupRequest) (*queuev1.CreateGroupResponse, error) {
	return c.queue.CreateGroup(ctx, req)
}

func (c overGRPC) DeleteGroup(ctx context.Context, req *queuev1.DeleteGroupRequest) (*queuev1.DeleteGroupResponse, error) {
	return c.queue.DeleteGroup(ctx, req)
}

func (c overGRPC) SeekGroup(ctx context.Context, req *queuev1.SeekGroupRequest) (*queuev1.SeekGroupResponse, error) {
	return c.queue.SeekGroup(ctx, req)
}

func (c overGRPC) ListDeadLetters(ctx context.Context, req *queuev1.ListDeadLettersRequest) (*queuev1.ListDeadLettersResponse, error) {
	return c.queue.ListDeadLetters(ctx, req)
}

func (c overGRPC) GetDeadLetter(ctx context.Context, req *queuev1.GetDeadLetterRequest) (*queuev1.GetDeadLetterResponse, error) {
	return c.queue.GetDeadLetter(ctx, req)
}

func (c overGRPC) PurgeDeadLetters(ctx context.Context, req *queuev1.PurgeDeadLettersRequest) (*queuev1.PurgeDeadLettersResponse, error) {
	return c.queue.PurgeDeadLetters(ctx, req)
}

func (c overGRPC) RotateQueueKey(ctx context.Context, req *queuev1.RotateQueueKeyRequest) (*queuev1.RotateQueueKeyResponse, error) {
	return c.queue.RotateQueueKey(ctx, req)
}

func (c overGRPC) RedriveDeadLetters(ctx context.Context, req *queuev1.RedriveDeadLettersRequest) (*queuev1.RedriveDeadLettersResponse, error) {
	return c.queue.RedriveDeadLetters(ctx, req)
}

func (c overGRPC) CreateTenant(ctx context.Context, req *adminv1.CreateTenantRequest) (*adminv1.CreateTenantResponse, error) {
	return c.admin.CreateTenant(ctx, req)
}

func (c overGRPC) ListTenants(ctx context.Context, req *adminv1.ListTenantsRequest) (*adminv1.ListTenantsResponse, error) {
	return c.admin.ListTenants(ctx, req)
}

func (c overGRPC) CreateAPIKey(ctx context.Context, req *adminv1.CreateAPIKeyRequest) (*adminv1.CreateAPIKeyResponse, error) {
	return c.admin.CreateAPIKey(ctx, req)
}

func (c overGRPC) ListAPIKeys(ctx context.Context, req *adminv1.ListAPIKeysRequest) (*adminv1.ListAPIKeysResponse, error) {
	return c.admin.ListAPIKeys(ctx, req)
}

func (c overGRPC) RevokeAPIKey(ctx context.Context, req *adminv1.RevokeAPIKeyRequest) (*adminv1.RevokeAPIKeyResponse, error) {
	return c.admin.RevokeAPIKey(ctx, req)
}

func (c overGRPC) GetSpool(ctx context.Context, req *adminv1.GetSpoolRequest) (*adminv1.GetSpoolResponse, error) {
	return c.admin.GetSpool(ctx, req)
}

func (c overGRPC) GetMesh(ctx context.Context, req *adminv1.GetMeshRequest) (*adminv1.GetMeshResponse, error) {
	return c.admin.GetMesh(ctx, req)
}

func (c overGRPC) GetModes(ctx context.Context, req *adminv1.GetModesRequest) (*adminv1.GetModesResponse, error) {
	return c.admin.GetModes(ctx, req)
}

func (c overGRPC) SetMode(ctx context.Context, req *adminv1.SetModeRequest) (*adminv1.SetModeResponse, error) {
	return c.admin.SetMode(ctx, req)
}

func (c overGRPC) ListNodes(ctx context.Context, req *adminv1.ListNodesRequest) (*adminv1.ListNodesResponse, error) {
	return c.admin.ListNodes(ctx, req)
}
