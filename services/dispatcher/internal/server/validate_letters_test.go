package server

import (
	"google.golang.org/protobuf/types/known/timestamppb"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

// deadLetterRules breaks the rules of dead letters.
func (r *rules) deadLetterRules() {
	for _, id := range []string{"", "x", "00000000-0000-0000-0000-00000000000", "{00000000-0000-7000-8000-000000000000}", "00000000000070008000000000000000", "0000000A-0000-7000-8000-000000000000"} {
		r.add("ID_MALFORMED", "id", func() error {
			_, err := r.GetDeadLetter(r.ctx, &queuev1.GetDeadLetterRequest{Queue: "q", Id: id})
			return err
		})
		r.add("ID_MALFORMED", "ids[0]", func() error {
			_, err := r.RedriveDeadLetters(r.ctx, &queuev1.RedriveDeadLettersRequest{Queue: "q", Ids: []string{id}})
			return err
		})
		r.add("ID_MALFORMED", "ids[0]", func() error {
			_, err := r.PurgeDeadLetters(r.ctx, &queuev1.PurgeDeadLettersRequest{Queue: "q", Ids: []string{id}})
			return err
		})
	}
	for field, req := range map[string]*queuev1.RedriveDeadLettersRequest{
		"group": {Group: "g", Ids: []string{"00000000-0000-7000-8000-000000000000"}},
		"limit": {Group: "g", Limit: 1001},
	} {
		req.Queue = "q"
		r.add(bad, field, func() error { _, err := r.RedriveDeadLetters(r.ctx, req); return err })
	}
	r.add(bad, "limit", func() error {
		_, err := r.RedriveDeadLetters(r.ctx, &queuev1.RedriveDeadLettersRequest{Queue: "q", Group: "g", Limit: -1})
		return err
	})
	r.add(bad, "limit", func() error {
		_, err := r.RedriveDeadLetters(r.ctx, &queuev1.RedriveDeadLettersRequest{Queue: "q", Ids: []string{"00000000-0000-7000-8000-000000000000"}, Limit: 1})
		return err
	})
	r.add(bad, "ids", func() error {
		_, err := r.RedriveDeadLetters(r.ctx, &queuev1.RedriveDeadLettersRequest{Queue: "q", Ids: make([]string, 1001)})
		return err
	})
	r.add("NAME_EMPTY", "ids", func() error {
		_, err := r.RedriveDeadLetters(r.ctx, &queuev1.RedriveDeadLettersRequest{Queue: "q"})
		return err
	})
}

// purgeRules breaks the rules of what is to be purged.
func (r *rules) purgeRules() {
	ids := []string{"00000000-0000-7000-8000-000000000000"}
	for _, c := range []struct {
		code, field string
		req         *queuev1.PurgeDeadLettersRequest
	}{
		{"NAME_EMPTY", "ids", &queuev1.PurgeDeadLettersRequest{}},
		{"NAME_EMPTY", "ids", &queuev1.PurgeDeadLettersRequest{FailedBefore: timestamppb.Now()}},
		{bad, "group", &queuev1.PurgeDeadLettersRequest{Group: "g", Ids: ids}},
		{bad, "all", &queuev1.PurgeDeadLettersRequest{All: true, Ids: ids}},
		{bad, "all", &queuev1.PurgeDeadLettersRequest{All: true, Group: "g"}},
		{bad, "ids", &queuev1.PurgeDeadLettersRequest{Ids: make([]string, 1001)}},
		{bad, "limit", &queuev1.PurgeDeadLettersRequest{Ids: ids, Limit: 1}},
		{bad, "limit", &queuev1.PurgeDeadLettersRequest{All: true, Limit: -1}},
		{bad, "limit", &queuev1.PurgeDeadLettersRequest{Group: "g", Limit: 1001}},
		{bad, "failed_before", &queuev1.PurgeDeadLettersRequest{Ids: ids, FailedBefore: timestamppb.Now()}},
		{bad, "failed_before", &queuev1.PurgeDeadLettersRequest{All: true, FailedBefore: &timestamppb.Timestamp{Seconds: 1 << 60}}},
	} {
		c.req.Queue = "q"
		r.add(c.code, c.field, func() error { _, err := r.PurgeDeadLetters(r.ctx, c.req); return err })
	}
}
