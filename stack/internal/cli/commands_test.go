package cli_test

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fields reads a JSON line.
func fields(t *testing.T, line string) map[string]any {
	t.Helper()
	var m map[string]any
	require.NoError(t, json.Unmarshal([]byte(line), &m), line)
	return m
}

// columns are the words of the table row that begins with first, which must be there once.
func columns(t *testing.T, table, first string) []string {
	t.Helper()
	var found []string
	for line := range strings.SplitSeq(table, "\n") {
		if words := strings.Fields(line); len(words) > 0 && words[0] == first {
			require.Nil(t, found, "two rows begin with %s:\n%s", first, table)
			found = words
		}
	}
	require.NotNil(t, found, "no row begins with %s:\n%s", first, table)
	return found
}

func TestPushPopAndAckTellPeopleWhatHappened(t *testing.T) {
	t.Parallel()
	s := newShell(t)

	out := s.must("push", "orders", `{"id": 7}`, "--partition", "customer-1", "-H", "event=made", "--idempotency-key", "k", "--client-id", "c")
	require.Regexp(t, `^queued \S+ at offset 0\n$`, out)
	id := strings.Fields(out)[1]
	require.Regexp(t, `^duplicate of `+id+` at offset 0\n$`,
		s.must("push", "orders", `{"id": 7}`, "--partition", "customer-1", "-H", "event=made", "--idempotency-key", "k", "--client-id", "c"))
	popped := s.must("pop", "orders", "--wait", "10s")
	require.Regexp(t, `MESSAGE +PARTITION +OFFSET +ATTEMPT +CREATED +PAYLOAD`, popped)
	row := columns(t, popped, id)
	require.Equal(t, []string{"customer-1", "0", "1"}, row[1:4])
	require.Equal(t, `{"id": 7}`, strings.Join(row[len(row)-2:], " "))
	require.Contains(t, popped, "postrider ack orders LEASE")
	require.Equal(t, "nothing ready\n", s.must("pop", "orders"))
	lease := leaseOf(t, popped)

	require.Equal(t, "settled", columns(t, s.must("ack", "orders", lease, id), id)[1])
	require.Equal(t, []string{"already", "settled"}, columns(t, s.must("ack", "orders", lease, id), id)[1:3])
	require.Equal(t, "queued 0 messages\n", s.must("push", "orders", "--lines"))
}

// leaseOf finds the lease's token in the output of pop.
func leaseOf(t *testing.T, popped string) string {
	t.Helper()
	for line := range strings.SplitSeq(popped, "\n") {
		if token, ok := strings.CutPrefix(line, "lease "); ok {
			return token
		}
	}
	t.Fatalf("no lease in %s", popped)
	return ""
}

func TestPushPopAndAckTellProgramsTheSameInJSON(t *testing.T) {
	t.Parallel()
	s := newShell(t)

	pushed := fields(t, s.must("push", "orders", `{"big":9007199254740993}`, "-o", "json"))
	require.Equal(t, false, pushed["duplicate"])
	require.EqualValues(t, 0, pushed["offset"])
	text := s.must("pop", "orders", "-o", "json", "-w", "10s")
	require.Contains(t, text, `"payload":{"big":9007199254740993}`, "a payload keeps its digits")
	popped := fields(t, text)
	delivery, ok := popped["deliveries"].([]any)[0].(map[string]any)
	require.True(t, ok)
	require.Equal(t, pushed["message_id"], delivery["message_id"])
	require.Equal(t, "application/json", delivery["content_type"])
	lease, ok := popped["lease"].(string)
	require.True(t, ok)
	acked := fields(t, s.must("ack", "orders", lease, "-o", "json"))
	require.EqualValues(t, 1, acked["rest_acked"])
	require.JSONEq(t, `{"lease":null,"deliveries":[]}`, s.must("pop", "orders", "-o", "json"))
	require.JSONEq(t, `{"version":"v0-test"}`, s.must("version", "-o", "json"))
	require.Equal(t, "postrider v0-test\n", s.must("version"))
}

func TestADelayedPushIsToldItsTimeAndCounted(t *testing.T) {
	t.Parallel()
	s := newShell(t)

	require.Regexp(t, `^queued p_\w+, due at \d{4}-`, s.must("push", "reminders", "x", "--delay", "1h"))
	at := fields(t, s.must("push", "reminders", "y", "--at", "2001-02-03T04:05:06Z", "-o", "json"))
	later := fields(t, s.must("push", "reminders", "z", "--delay", "24h", "-o", "json"))

	require.EqualValues(t, 0, at["offset"])
	require.NotContains(t, later, "offset")
	require.Contains(t, later, "available_at")
	require.Contains(t, s.must("lookup", "reminders", later["message_id"].(string)), " of partition default waits until ")
	require.Contains(t, s.must("lookup", "reminders", at["message_id"].(string)), " of partition default at offset 0, since ")
	require.Contains(t, s.must("queue", "show", "reminders"), "2 delayed messages wait for their time")
	for _, args := range [][]string{{"--at", "tomorrow"}, {"--at", "2001-02-03T04:05:06Z", "--delay", "1s"}, {"--delay", "9000h"}} {
		_, _, err := s.run(append([]string{"push", "reminders", "x"}, args...)...)
		require.Error(t, err, args)
	}
}

func TestDeleteTakesAMessageAwayOrCancelsIt(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	id := fields(t, s.must("push", "orders", "first", "-o", "json"))["message_id"].(string)
	named := fields(t, s.must("push", "orders", "second", "-p", "p", "--client-id", "order-8", "-o", "json"))["message_id"].(string)
	later := fields(t, s.must("push", "orders", "third", "--delay", "1h", "-o", "json"))["message_id"].(string)
	s.must("push", "orders", "fourth")

	require.Equal(t, "message "+id+" is deleted: no group gets it any more\n", s.must("delete", "orders", id))
	require.JSONEq(t, `{"message_id":"`+named+`"}`, s.must("delete", "orders", "--client-id", "order-8", "-p", "p", "-o", "json"))
	require.Equal(t, "message "+later+" is cancelled: it never comes\n", s.must("delete", "orders", later))

	shown := s.must("peek", "orders")
	require.Contains(t, shown, "fourth")
	require.NotRegexp(t, `first|second|third`, shown)
	for _, args := range [][]string{{id}, {"--client-id", "order-8", "-p", "p"}, {later}} {
		_, _, err := s.run(append([]string{"lookup", "orders"}, args...)...)
		require.ErrorContains(t, err, "MESSAGE_NOT_FOUND", args)
	}
	_, _, err := s.run("delete", "orders", "nonsense")
	require.Error(t, err)
}

func TestPeekShowsWhatIsThereAndWhereToGoOn(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.must("push", "orders", `{"big":9007199254740993}`, "-p", "a")
	s.must("push", "orders", "second", "-p", "b")
	s.must("push", "orders", "third", "-p", "a")

	require.Contains(t, s.must("peek", "orders", "-n", "1"), "shard 0 keeps offsets 0 to 3; looked at 0 to 1, go on with --from 1\n")
	rest := s.must("peek", "orders", "--from", "1")
	require.Regexp(t, `(?s)second.*third`, rest)
	require.Contains(t, rest, "looked at 1 to 3\n")
	require.NotContains(t, s.must("peek", "orders", "--from", "latest", "-p", "a", "-n", "1"), "big")
	require.Contains(t, s.must("peek", "orders", "--from", "9"), "no messages there\n")
	require.Contains(t, s.must("peek", "orders", "--max-bytes", "1", "-o", "json"), `"payload":{"big":9007199254740993}`)
	_, _, err := s.run("peek", "orders", "--shard", "1")
	require.ErrorContains(t, err, "the queue has 1")
}

func TestLookupTracesAMessage(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	id := fields(t, s.must("push", "orders", "x", "--client-id", "c", "-o", "json"))["message_id"].(string)
	s.must("pop", "orders", "--group", "g", "-w", "10s")

	require.Regexp(t, `g +leased +0 +attempt 1 of .* until `, s.must("lookup", "orders", id, "--trace"))
	require.Contains(t, s.must("lookup", "orders", "--client-id", "c", "--trace", "--group", "g", "-o", "json"), `"TRACE_STATE_LEASED"`)
	require.NotContains(t, s.must("lookup", "orders", id), "leased")
}

func TestLookupTellsWhatHappenedToAMessageOfATracedQueue(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.must("queue", "configure", "orders", "--trace")
	require.Contains(t, s.must("queue", "show", "orders"), "trace true")
	id := fields(t, s.must("push", "orders", "x", "-o", "json"))["message_id"].(string)
	s.must("pop", "orders", "-w", "10s")

	require.Regexp(t, `pushed[^\n]*\n[^\n]*delivered +default +attempt 1 to ".*"; lease \d+; until `, s.must("lookup", "orders", id, "--trace"))
	require.Contains(t, s.must("lookup", "orders", id, "--trace", "-o", "json"), "TRACE_EVENT_KIND_DELIVERED")
}

func TestAQueueIsGivenADelayAndLookupTellsUntilWhenAMessageIsTooYoung(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.must("queue", "configure", "orders", "--delay", "15m")
	require.Contains(t, s.must("queue", "show", "orders"), "delay 15m0s")
	id := fields(t, s.must("push", "orders", "x", "-o", "json"))["message_id"].(string)
	s.must("pop", "orders", "-w", "0s")

	require.Regexp(t, `default +waiting +0 +until `, s.must("lookup", "orders", id, "--trace"))
	s.must("queue", "configure", "orders", "--reset", "delay")
	require.Contains(t, s.must("queue", "show", "orders"), "delay none")
}

func TestPopAcksAtOnceWhenTold(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.must("push", "jobs", "plain text")

	require.Contains(t, s.must("pop", "jobs", "--ack", "--mode", "shared", "--group", "g", "-w", "10s"), "\nacked\n")

	require.Equal(t, "nothing ready\n", s.must("pop", "jobs", "--group", "g"))
}

func TestQueuesAreListedShownConfiguredAndRemoved(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	require.Equal(t, "no queues\n", s.must("queue", "ls"))

	require.Equal(t, "orders is at configuration 1\n", s.must("queue", "configure", "orders", "--max-attempts", "3", "--lease", "1m", "--shards", "2"))
	require.Equal(t, "orders is at configuration 2\n", s.must("queue", "configure", "orders", "--backoff", "2s", "--reset", "lease"))
	shown := s.must("queue", "show", "orders")
	require.Contains(t, shown, "lease 30s · max-attempts 3 · backoff 2s to 5m0s")
	require.Contains(t, shown, "no groups yet")
	s.must("push", "orders", "x")
	s.must("pop", "orders", "-w", "10s")
	require.Equal(t, []string{"default", "ordered", "earliest"}, columns(t, s.must("queue", "show", "orders"), "default")[:3])
	require.Equal(t, "orders", columns(t, s.must("queue", "ls", "ord"), "orders")[0])
	require.Equal(t, "no queues\n", s.must("queue", "ls", "other"))
	listed := fields(t, s.must("queue", "ls", "-o", "json"))
	require.Equal(t, "orders", listed["name"])
	asJSON := fields(t, s.must("queue", "show", "orders", "-o", "json"))
	require.Len(t, asJSON["shards"], 2)
	configured := fields(t, s.must("queue", "configure", "orders", "--max-groups", "7", "-o", "json"))
	require.EqualValues(t, 7, configured["options"].(map[string]any)["max_groups"])

	_, _, err := s.run("queue", "rm", "orders")
	require.ErrorContains(t, err, "QUEUE_LEASED")
	require.Equal(t, "deleted orders\n", s.must("queue", "rm", "orders", "--force"))
	_, _, err = s.run("queue", "show", "orders")
	require.ErrorContains(t, err, "QUEUE_NOT_FOUND")
}

func TestAKeyIsRotatedOfAnEncryptedQueueOnly(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.must("push", "orders", "x")
	_, _, err := s.run("queue", "rotate-key", "orders")
	require.ErrorContains(t, err, "QUEUE_NOT_ENCRYPTED")
	_, _, err = s.run("queue", "rotate-key", "nobody")
	require.ErrorContains(t, err, "QUEUE_NOT_FOUND")
}

func TestDeadLettersAreListedShownRedrivenAndPurged(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.must("push", "orders", "broken")
	popped := s.must("pop", "orders", "-w", "10s")
	lease := leaseOf(t, popped)
	id := fields(t, s.must("push", "orders", "second", "-o", "json"))["message_id"]
	require.NotEmpty(t, id)
	message := messageOf(popped)
	require.Equal(t, "no dead letters\n", s.must("dlq", "ls", "orders"))

	require.Equal(t, []string{"dead", "letter"}, columns(t, s.must("ack", "orders", lease, message, "--reject", "--reason", "no stock"), message)[1:3])
	listed := fields(t, s.must("dlq", "ls", "orders", "-o", "json"))
	require.Equal(t, "no stock", listed["reason"])
	letter, ok := listed["id"].(string)
	require.True(t, ok)
	require.Equal(t, []string{"default", "default", "0", "1"}, columns(t, s.must("dlq", "ls", "orders"), letter)[1:5])
	require.Contains(t, s.must("dlq", "show", "orders", letter), "reason: no stock\n\nbroken\n")
	require.Contains(t, s.must("dlq", "show", "orders", letter, "-o", "json"), `"payload":"broken"`)
	require.Equal(t, "redriven 1, redriven before 0, not found 0\n", s.must("dlq", "redrive", "orders", letter))
	require.Equal(t, "redriven 0, redriven before 1, not found 0\n", s.must("dlq", "redrive", "orders", letter))
	require.Equal(t, "redriven 0, redriven before 0, not found 0\n", s.must("dlq", "redrive", "orders", "--group", "default"))

	require.Equal(t, "purged 0, redriven and kept 1, not found 0\n", s.must("dlq", "purge", "orders", letter))
	require.Equal(t, "purged 0, redriven and kept 0, not found 0\n", s.must("dlq", "purge", "orders", "--group", "default"))
	require.Equal(t, "purged 0, redriven and kept 0, not found 0\n",
		s.must("dlq", "purge", "orders", "--all", "--include-redriven", "--failed-before", "2001-01-01T00:00:00Z"))
	require.Equal(t, "purged 1, redriven and kept 0, not found 0\n", s.must("dlq", "purge", "orders", "--all", "--include-redriven"))
	require.Contains(t, s.must("dlq", "purge", "orders", letter, "-o", "json"), letter)
}

// messageOf is the first word of the first row under the table's rule.
func messageOf(popped string) string {
	lines := strings.Split(popped, "\n")
	return strings.Fields(lines[2])[0]
}

func TestOneBadLineIsToldByItsNumberAndTheOthersArePushed(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.must("queue", "configure", "events", "--max-message-bytes", "100")
	s.in = `{"n":1}` + "\n" + `"` + strings.Repeat("x", 200) + `"` + "\n" + `{"n":3}` + "\n"

	_, errs, err := s.run("push", "events", "--lines")

	require.EqualError(t, err, "1 of 3 lines were refused")
	require.Regexp(t, `^line 2: .*MESSAGE_TOO_LARGE`, errs)
	s.in = ""
	got := s.must("pop", "events", "-n", "10", "-w", "10s", "-o", "json")
	require.Contains(t, got, `{"n":1}`)
	require.Contains(t, got, `{"n":3}`)
	s.in = "a\nb\n"
	require.JSONEq(t, `{"pushed":2}`, s.must("push", "other", "--lines", "-o", "json"))
}

func TestQueueShowSaysWhichHostAQueueIsRoutedTo(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.must("push", "news", "1")
	require.NotContains(t, s.must("queue", "show", "news"), "routed")
	ended := make(chan struct{})
	t.Cleanup(func() { <-ended }) // the test's context has ended then, and with it the subscription

	go func() {
		defer close(ended)
		_, _, _ = s.run("subscribe", "news") // ends by the test's end
	}()

	require.Eventually(t, func() bool {
		out, _, err := s.run("queue", "show", "news")
		return err == nil && regexp.MustCompile(`(?m)^routed to host \S+ since .* \(epoch 1\)$`).MatchString(out)
	}, 30*time.Second, 50*time.Millisecond)
	route, ok := fields(t, s.must("queue", "show", "news", "-o", "json"))["route"].(map[string]any)
	require.True(t, ok)
	require.Equal(t, "1", route["epoch"])
}

func TestSubscribePrintsTheLogFromWhereItIsToldAndResumes(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.must("push", "news", `{"n": 1}`, "-p", "a", "-H", "kind=x")
	s.must("push", "news", `{"n": 2}`, "-p", "b", "-H", "kind=y")
	s.must("push", "news", `{"n": 3}`, "-p", "a", "-H", "kind=y")

	out := s.must("subscribe", "news", "--from", "earliest", "--count", "3")
	require.Len(t, strings.Split(strings.TrimSpace(out), "\n"), 3)
	require.Contains(t, out, `  1  b  {"n": 2}`)
	one := fields(t, s.must("subscribe", "news", "--from", "0", "-n", "1", "-o", "json"))
	require.EqualValues(t, 0, one["offset"])
	resume, ok := one["resume"].(string)
	require.True(t, ok)
	two := fields(t, s.must("subscribe", "news", "--resume", resume, "-H", "kind=y", "-p", "a", "-n", "1", "-o", "json"))
	require.EqualValues(t, 2, two["offset"], "the one that is left and wanted")

	for want, args := range map[string][]string{
		"not both": {"--from", "1", "--resume", resume}, "INVALID_START": {"--from", "yesterday"}, "has 1 shards": {"--from", "1,2"},
	} {
		_, _, err := s.run(append([]string{"subscribe", "news"}, args...)...)
		require.ErrorContains(t, err, want)
	}
}
