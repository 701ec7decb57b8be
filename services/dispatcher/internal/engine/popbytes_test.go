package engine_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

// manyHeaders is as many headers as a message may have, each as small as it can be: what costs the wire most beside its bytes.
func manyHeaders() map[string]string {
	headers := make(map[string]string, 64)
	for i := range 64 {
		headers[fmt.Sprintf("%c", '0'+i)] = ""
	}
	return headers
}

// fullHeaders is the most bytes of headers.
func fullHeaders() map[string]string { return map[string]string{"h": strings.Repeat("v", 8<<10-1)} }

func TestAnAnswerHasNoMoreBytesOnTheWireThanMaxBytes(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{})
	long := strings.Repeat("n", 255)
	shapes := map[string]func(i int) *queuev1.PushItem{
		"empty":   func(int) *queuev1.PushItem { return &queuev1.PushItem{} },
		"headers": func(int) *queuev1.PushItem { return &queuev1.PushItem{Headers: manyHeaders()} },
		"full": func(i int) *queuev1.PushItem {
			return &queuev1.PushItem{Partition: long, ClientId: fmt.Sprint(long[:250], i), ContentType: "a/" + long[2:], Headers: fullHeaders()}
		},
		"large": func(int) *queuev1.PushItem { return &queuev1.PushItem{Payload: make([]byte, 1<<19)} },
	}
	for name, shape := range shapes {
		count, request := 1000, 250
		if name == "large" {
			count, request = 66, 33
		}
		for from := 0; from < count; from += request {
			items := make([]*queuev1.PushItem, request)
			for i := range items {
				items[i] = shape(from + i)
			}
			n.push(name, items...)
		}
		for _, most := range []int32{2_000, 0, 32 << 20} {
			limit := int(most)
			if most == 0 {
				limit = 4 << 20 // what a gRPC client takes that was told nothing
			}

			resp := n.pop(&queuev1.PopRequest{Queue: name, Batch: 1000, MaxBytes: most, Group: fmt.Sprint("g", most)})

			if size := proto.Size(resp); len(resp.GetDeliveries()) > 1 {
				require.LessOrEqual(t, size, limit, "%s, max_bytes %d, %d messages", name, most, len(resp.GetDeliveries()))
			}
			if most == 32<<20 && name == "large" {
				require.Greater(t, proto.Size(resp), limit-2<<19, "it is not much less either")
			}
		}
	}
}

func TestWhatAPopSettlesCountsTowardsItsBytes(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{})
	items := make([]*queuev1.PushItem, 1000)
	for i := range items {
		items[i] = &queuev1.PushItem{Partition: strconv.Itoa(i), Payload: make([]byte, 4200)}
	}
	n.push("q", items...)
	settle := &queuev1.AckRequest{Lease: n.pop(&queuev1.PopRequest{Queue: "q", Group: "other"}).GetLease()}
	for i := range 1000 { // refused, each with its reason
		settle.Settlements = append(settle.Settlements, &queuev1.Settlement{MessageId: fmt.Sprint("2zzzzzzz", strings.Repeat("2", i%10))})
	}

	resp := n.pop(&queuev1.PopRequest{Queue: "q", Group: "other", Batch: 1000, Settle: settle})

	require.Len(t, resp.GetSettled(), 1000)
	require.Greater(t, len(resp.GetDeliveries()), 500)
	require.LessOrEqual(t, proto.Size(resp), 4<<20)
}

func TestAPopOverShardsKeepsToItsBytes(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{})
	makeQueue(t, n, 8)
	for i := range 12 {
		n.push("q", &queuev1.PushItem{Partition: strconv.Itoa(i), Payload: make([]byte, 1<<20-100)})
	}

	resp := n.pop(&queuev1.PopRequest{Queue: "q", Batch: 1000, MaxBytes: 3<<20 + 1<<19})

	require.Len(t, resp.GetDeliveries(), 3, "messages that do not fit stay, though they are the first of their shards")
	require.LessOrEqual(t, proto.Size(resp), 3<<20+1<<19)
}

func TestAPopOverShardsKeepsToItsPartitions(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{})
	makeQueue(t, n, 8)
	var items []*queuev1.PushItem
	for i := range 24 {
		items = append(items, item(strconv.Itoa(i%12), "x"))
	}
	n.push("q", items...)

	for most := int32(1); most <= 4; most++ {
		resp := n.pop(&queuev1.PopRequest{Queue: "q", Group: strconv.Itoa(int(most)), Batch: 1000, Partitions: most})

		partitions := map[string]int{}
		for _, d := range resp.GetDeliveries() {
			partitions[d.GetPartition()]++
		}
		require.Len(t, partitions, int(most), "it takes from further shards up to its number, and not beyond")
		require.Len(t, resp.GetDeliveries(), 2*int(most), "all that each of them has")
	}
}
