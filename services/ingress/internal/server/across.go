package server

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/ingress/internal/domain"
)

// across holds the rules over several fields of a request.
func across(m proto.Message) *domain.Violation {
	switch req := m.(type) {
	case *queuev1.AckRequest:
		return acrossAck(req, "")
	case *queuev1.PopRequest:
		return acrossPop(req)
	case *queuev1.SubscribeRequest:
		return acrossSubscribe(req)
	case *queuev1.ConfigureQueueRequest:
		return acrossConfigure(req)
	case *queuev1.LookupMessageRequest:
		return acrossLookup(req)
	case *queuev1.DeleteMessageRequest:
		return acrossName("DeleteMessageRequest", req)
	case *queuev1.PeekMessagesRequest:
		return acrossPeek(req)
	case *queuev1.RedriveDeadLettersRequest:
		return acrossRedrive(req)
	case *queuev1.PurgeDeadLettersRequest:
		return acrossPurge(req)
	case *queuev1.SeekGroupRequest:
		return acrossSeek(req)
	case *queuev1.TransactRequest:
		return acrossTransact(req)
	}
	return nil
}

func conflict(name, field, detail string) *domain.Violation {
	return &domain.Violation{Rule: name, Field: field, Code: domain.CodeConflict, Detail: detail}
}

func missing(name, field, detail string) *domain.Violation {
	return &domain.Violation{Rule: name, Field: field, Code: domain.CodeMissing, Detail: detail}
}

func acrossAck(req *queuev1.AckRequest, path string) *domain.Violation {
	switch {
	case len(req.GetSettlements()) == 0 && !req.GetAckRest():
		return missing("AckRequest.something", path+"settlements", "settlements or ack_rest is needed")
	case req.GetAckRest() && req.GetLease() == "":
		return missing("AckRequest.rest_of_lease", path+"lease", "ack_rest needs a lease")
	}
	for i, s := range req.GetSettlements() {
		if v := acrossSettlement(s, fmt.Sprintf("%ssettlements[%d].", path, i)); v != nil {
			return v
		}
	}
	return nil
}

func acrossSettlement(s *queuev1.Settlement, path string) *domain.Violation {
	action := s.GetAction()
	switch {
	case s.GetMessageId() == "" && s.GetClientId() == "":
		return missing("Settlement.which", path+"message_id", "message_id, or client_id with its partition, is needed")
	case s.GetMessageId() != "" && s.GetClientId() != "":
		return conflict("Settlement.one_name", path+"client_id", "message_id and client_id exclude each other")
	case s.GetMessageId() != "" && s.GetPartition() != "":
		return conflict("Settlement.partition", path+"partition", "partition goes with client_id only")
	case s.GetDelay() != nil && action != queuev1.AckAction_ACK_ACTION_NACK:
		return conflict("Settlement.delay", path+"delay", "delay goes with nack only")
	case s.GetReason() != "" && action != queuev1.AckAction_ACK_ACTION_NACK && action != queuev1.AckAction_ACK_ACTION_REJECT:
		return conflict("Settlement.reason", path+"reason", "reason goes with nack and reject only")
	}
	return nil
}

func acrossPop(req *queuev1.PopRequest) *domain.Violation {
	settle := req.GetSettle()
	switch {
	case settle == nil:
		return nil
	case settle.GetQueue() != req.GetQueue():
		return conflict("PopRequest.settle_queue", "settle.queue", "settle is about the queue of the pop")
	case settle.GetLease() == "":
		return missing("PopRequest.settle_lease", "settle.lease", "settle needs a lease")
	}
	return acrossAck(settle, "settle.")
}

func acrossSubscribe(req *queuev1.SubscribeRequest) *domain.Violation {
	if req.GetResume() == "" {
		return nil
	}
	if req.GetFrom() != "" {
		return conflict("SubscribeRequest.one_place", "from", "from and resume exclude each other")
	}
	if _, err := domain.ParseResume(req.GetResume()); err != nil {
		return &domain.Violation{Rule: "SubscribeRequest.resume_token", Field: "resume", Code: domain.CodeToken, Detail: err.Error()}
	}
	return nil
}

func acrossConfigure(req *queuev1.ConfigureQueueRequest) *domain.Violation {
	options := req.GetOptions().ProtoReflect()
	for i, name := range req.GetReset_() {
		fd := optionField(name)
		if fd == nil {
			return &domain.Violation{
				Rule: "ConfigureQueueRequest.reset_known", Field: fmt.Sprintf("reset[%d]", i), Code: domain.CodeOption,
				Detail: fmt.Sprintf("there is no option %q", name),
			}
		}
		if req.GetOptions() != nil && options.Has(fd) {
			return conflict("ConfigureQueueRequest.reset_or_set", fmt.Sprintf("reset[%d]", i), "an option is either set or reset")
		}
	}
	return nil
}

// named is a request that is about one message, by one of its names.
type named interface {
	GetMessageId() string
	GetClientId() string
	GetPartition() string
}

func acrossName(request string, req named) *domain.Violation {
	switch {
	case req.GetMessageId() == "" && req.GetClientId() == "":
		return missing(request+".which", "client_id", "client_id with its partition, or message_id, is needed")
	case req.GetMessageId() != "" && (req.GetClientId() != "" || req.GetPartition() != ""):
		return conflict(request+".one_name", "message_id", "message_id stands alone: without client_id and partition")
	}
	return nil
}

func acrossLookup(req *queuev1.LookupMessageRequest) *domain.Violation {
	if v := acrossName("LookupMessageRequest", req); v != nil {
		return v
	}
	switch {
	case req.GetGroup() != "" && !req.GetTrace():
		return conflict("LookupMessageRequest.group", "group", "group goes with trace only")
	case req.GetPageSize() != 0 && !req.GetTrace():
		return conflict("LookupMessageRequest.page_size", "page_size", "page_size goes with trace only")
	case req.GetPageToken() != "" && !req.GetTrace():
		return conflict("LookupMessageRequest.page_token", "page_token", "page_token goes with trace only")
	}
	return nil
}

func acrossPeek(req *queuev1.PeekMessagesRequest) *domain.Violation {
	if req.Shard != nil && req.GetPartition() != "" {
		return conflict("PeekMessagesRequest.shard", "shard", "partition says the shard")
	}
	if req.Priority != nil && req.GetPartition() == "" {
		return conflict("PeekMessagesRequest.priority", "priority", "priority goes with partition only")
	}
	return nil
}

func acrossSeek(req *queuev1.SeekGroupRequest) *domain.Violation {
	text, offsets := req.GetTo() != "", len(req.GetOffsets()) > 0
	switch {
	case !text && !offsets:
		return missing("SeekGroupRequest.where", "to", "to or offsets is needed")
	case text && offsets:
		return conflict("SeekGroupRequest.one_way", "to", "to and offsets exclude each other")
	}
	for i, offset := range req.GetOffsets() {
		if offset < 0 {
			return &domain.Violation{
				Rule: "SeekGroupRequest.offset", Field: fmt.Sprintf("offsets[%d]", i), Code: domain.CodeOutOfRange, Detail: "an offset is 0 or more",
			}
		}
	}
	return nil
}

func acrossRedrive(req *queuev1.RedriveDeadLettersRequest) *domain.Violation {
	ids, group := len(req.GetIds()) > 0, req.GetGroup() != ""
	switch {
	case !ids && !group:
		return missing("RedriveDeadLettersRequest.which", "ids", "ids or group is needed")
	case ids && group:
		return conflict("RedriveDeadLettersRequest.one_way", "group", "ids and group exclude each other")
	case ids && req.GetLimit() != 0:
		return conflict("RedriveDeadLettersRequest.limit", "limit", "limit goes with group only")
	}
	return nil
}

func acrossPurge(req *queuev1.PurgeDeadLettersRequest) *domain.Violation {
	ids, group, all := len(req.GetIds()) > 0, req.GetGroup() != "", req.GetAll()
	switch {
	case !ids && !group && !all:
		return missing("PurgeDeadLettersRequest.which", "ids", "ids, group or all is needed")
	case ids && group:
		return conflict("PurgeDeadLettersRequest.one_way", "group", "ids and group exclude each other")
	case all && (ids || group):
		return conflict("PurgeDeadLettersRequest.all", "all", "all stands without ids and group")
	case ids && req.GetLimit() != 0:
		return conflict("PurgeDeadLettersRequest.limit", "limit", "limit goes with group and all only")
	case ids && req.GetFailedBefore() != nil:
		return conflict("PurgeDeadLettersRequest.failed_before", "failed_before", "failed_before goes with group and all only")
	}
	return nil
}
