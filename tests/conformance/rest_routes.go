package conformance

import (
	"context"
	"net/http"
	"net/url"

	adminv1 "postrider.dev/proto/gen/postrider/admin/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

func (c overREST) Ack(ctx context.Context, req *queuev1.AckRequest) (*queuev1.AckResponse, error) {
	resp := &queuev1.AckResponse{}
	return resp, c.call(ctx, http.MethodPost, queue(req.GetQueue())+"/ack", req, resp, "queue")
}

func (c overREST) Renew(ctx context.Context, req *queuev1.RenewRequest) (*queuev1.RenewResponse, error) {
	resp := &queuev1.RenewResponse{}
	return resp, c.call(ctx, http.MethodPost, queue(req.GetQueue())+"/renew", req, resp, "queue")
}

func (c overREST) Release(ctx context.Context, req *queuev1.ReleaseRequest) (*queuev1.ReleaseResponse, error) {
	resp := &queuev1.ReleaseResponse{}
	return resp, c.call(ctx, http.MethodPost, queue(req.GetQueue())+"/release", req, resp, "queue")
}

func (c overREST) LookupMessage(ctx context.Context, req *queuev1.LookupMessageRequest) (*queuev1.LookupMessageResponse, error) {
	resp := &queuev1.LookupMessageResponse{}
	return resp, c.call(ctx, http.MethodGet, queue(req.GetQueue())+"/messages/lookup", req, resp, "queue")
}

func (c overREST) DeleteMessage(ctx context.Context, req *queuev1.DeleteMessageRequest) (*queuev1.DeleteMessageResponse, error) {
	resp := &queuev1.DeleteMessageResponse{}
	return resp, c.call(ctx, http.MethodDelete, queue(req.GetQueue())+"/messages", req, resp, "queue")
}

func (c overREST) PeekMessages(ctx context.Context, req *queuev1.PeekMessagesRequest) (*queuev1.PeekMessagesResponse, error) {
	resp := &queuev1.PeekMessagesResponse{}
	return resp, c.call(ctx, http.MethodGet, queue(req.GetQueue())+"/peek", req, resp, "queue")
}

func (c overREST) ConfigureQueue(ctx context.Context, req *queuev1.ConfigureQueueRequest) (*queuev1.ConfigureQueueResponse, error) {
	resp := &queuev1.ConfigureQueueResponse{}
	return resp, c.call(ctx, http.MethodPatch, queue(req.GetQueue()), req, resp, "queue")
}

func (c overREST) ListQueues(ctx context.Context, req *queuev1.ListQueuesRequest) (*queuev1.ListQueuesResponse, error) {
	resp := &queuev1.ListQueuesResponse{}
	return resp, c.call(ctx, http.MethodGet, "/v1/queues", req, resp)
}

func (c overREST) GetQueue(ctx context.Context, req *queuev1.GetQueueRequest) (*queuev1.GetQueueResponse, error) {
	resp := &queuev1.GetQueueResponse{}
	return resp, c.call(ctx, http.MethodGet, queue(req.GetQueue()), req, resp, "queue")
}

func (c overREST) DeleteQueue(ctx context.Context, req *queuev1.DeleteQueueRequest) (*queuev1.DeleteQueueResponse, error) {
	resp := &queuev1.DeleteQueueResponse{}
	return resp, c.call(ctx, http.MethodDelete, queue(req.GetQueue()), req, resp, "queue")
}

func (c overREST) ListPartitions(ctx context.Context, req *queuev1.ListPartitionsRequest) (*queuev1.ListPartitionsResponse, error) {
	resp := &queuev1.ListPartitionsResponse{}
	return resp, c.call(ctx, http.MethodGet, queue(req.GetQueue())+"/partitions", req, resp, "queue")
}

func (c overREST) CreateGroup(ctx context.Context, req *queuev1.CreateGroupRequest) (*queuev1.CreateGroupResponse, error) {
	resp := &queuev1.CreateGroupResponse{}
	return resp, c.call(ctx, http.MethodPost, queue(req.GetQueue())+"/groups", req, resp, "queue")
}

func (c overREST) DeleteGroup(ctx context.Context, req *queuev1.DeleteGroupRequest) (*queuev1.DeleteGroupResponse, error) {
	resp := &queuev1.DeleteGroupResponse{}
	return resp, c.call(ctx, http.MethodDelete, queue(req.GetQueue())+"/groups/"+url.PathEscape(req.GetGroup()), req, resp, "queue", "group")
}

func (c overREST) SeekGroup(ctx context.Context, req *queuev1.SeekGroupRequest) (*queuev1.SeekGroupResponse, error) {
	resp := &queuev1.SeekGroupResponse{}
	return resp, c.call(ctx, http.MethodPost, queue(req.GetQueue())+"/groups/"+url.PathEscape(req.GetGroup())+"/seek", req, resp, "queue", "group")
}

func (c overREST) ListDeadLetters(ctx context.Context, req *queuev1.ListDeadLettersRequest) (*queuev1.ListDeadLettersResponse, error) {
	resp := &queuev1.ListDeadLettersResponse{}
	return resp, c.call(ctx, http.MethodGet, queue(req.GetQueue())+"/dead-letters", req, resp, "queue")
}

func (c overREST) GetDeadLetter(ctx context.Context, req *queuev1.GetDeadLetterRequest) (*queuev1.GetDeadLetterResponse, error) {
	resp := &queuev1.GetDeadLetterResponse{}
	return resp, c.call(ctx, http.MethodGet, queue(req.GetQueue())+"/dead-letters/"+url.PathEscape(req.GetId()), req, resp, "queue", "id")
}

func (c overREST) RedriveDeadLetters(ctx context.Context, req *queuev1.RedriveDeadLettersRequest) (*queuev1.RedriveDeadLettersResponse, error) {
	resp := &queuev1.RedriveDeadLettersResponse{}
	return resp, c.call(ctx, http.MethodPost, queue(req.GetQueue())+"/dead-letters/redrive", req, resp, "queue")
}

func (c overREST) PurgeDeadLetters(ctx context.Context, req *queuev1.PurgeDeadLettersRequest) (*queuev1.PurgeDeadLettersResponse, error) {
	resp := &queuev1.PurgeDeadLettersResponse{}
	return resp, c.call(ctx, http.MethodPost, queue(req.GetQueue())+"/dead-letters/purge", req, resp, "queue")
}

func (c overREST) RotateQueueKey(ctx context.Context, req *queuev1.RotateQueueKeyRequest) (*queuev1.RotateQueueKeyResponse, error) {
	resp := &queuev1.RotateQueueKeyResponse{}
	return resp, c.call(ctx, http.MethodPost, queue(req.GetQueue())+"/rotate-key", req, resp, "queue")
}

func (c overREST) CreateTenant(ctx context.Context, req *adminv1.CreateTenantRequest) (*adminv1.CreateTenantResponse, error) {
	resp := &adminv1.CreateTenantResponse{}
	return resp, c.call(ctx, http.MethodPost, "/v1/admin/tenants", req, resp)
}

func (c overREST) ListTenants(ctx context.Context, req *adminv1.ListTenantsRequest) (*adminv1.ListTenantsResponse, error) {
	resp := &adminv1.ListTenantsResponse{}
	return resp, c.call(ctx, http.MethodGet, "/v1/admin/tenants", req, resp)
}

func (c overREST) CreateAPIKey(ctx context.Context, req *adminv1.CreateAPIKeyRequest) (*adminv1.CreateAPIKeyResponse, error) {
	resp := &adminv1.CreateAPIKeyResponse{}
	return resp, c.call(ctx, http.MethodPost, "/v1/admin/keys", req, resp)
}

func (c overREST) ListAPIKeys(ctx context.Context, req *adminv1.ListAPIKeysRequest) (*adminv1.ListAPIKeysResponse, error) {
	resp := &adminv1.ListAPIKeysResponse{}
	return resp, c.call(ctx, http.MethodGet, "/v1/admin/keys", req, resp)
}

func (c overREST) RevokeAPIKey(ctx context.Context, req *adminv1.RevokeAPIKeyRequest) (*adminv1.RevokeAPIKeyResponse, error) {
	resp := &adminv1.RevokeAPIKeyResponse{}
	return resp, c.call(ctx, http.MethodDelete, "/v1/admin/keys/"+url.PathEscape(req.GetId()), req, resp, "id")
}

func (c overREST) GetSpool(ctx context.Context, req *adminv1.GetSpoolRequest) (*adminv1.GetSpoolResponse, error) {
	resp := &adminv1.GetSpoolResponse{}
	return resp, c.call(ctx, http.MethodGet, "/v1/admin/spool", req, resp)
}

func (c overREST) GetMesh(ctx context.Context, req *adminv1.GetMeshRequest) (*adminv1.GetMeshResponse, error) {
	resp := &adminv1.GetMeshResponse{}
	return resp, c.call(ctx, http.MethodGet, "/v1/admin/mesh", req, resp)
}

func (c overREST) GetModes(ctx context.Context, req *adminv1.GetModesRequest) (*adminv1.GetModesResponse, error) {
	resp := &adminv1.GetModesResponse{}
	return resp, c.call(ctx, http.MethodGet, "/v1/admin/modes", req, resp)
}

func (c overREST) SetMode(ctx context.Context, req *adminv1.SetModeRequest) (*adminv1.SetModeResponse, error) {
	resp := &adminv1.SetModeResponse{}
	return resp, c.call(ctx, http.MethodPut, "/v1/admin/modes/"+url.PathEscape(req.GetMode()), req, resp, "mode")
}

func (c overREST) ListNodes(ctx context.Context, req *adminv1.ListNodesRequest) (*adminv1.ListNodesResponse, error) {
	resp := &adminv1.ListNodesResponse{}
	return resp, c.call(ctx, http.MethodGet, "/v1/admin/nodes", req, resp)
}
