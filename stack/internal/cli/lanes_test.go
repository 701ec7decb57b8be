package cli_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAQueueIsMadeWithLanesAndServesTheHighestFirst(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.must("queue", "configure", "mail", "--lanes", "3", "--shards", "2")
	s.must("push", "mail", "later", "-p", "a")
	s.must("push", "mail", "now", "-p", "a", "--priority", "2")

	shown := s.must("queue", "show", "mail")
	peeked := s.must("peek", "mail", "-p", "a", "--priority", "2")
	none := s.must("peek", "mail", "-p", "a", "--priority", "1")
	popped := s.must("pop", "mail", "-n", "2", "-o", "json")

	require.Contains(t, shown, "lanes 3")
	require.Regexp(t, `SHARD +PRIORITY +TAIL +HEAD`, shown)
	require.Contains(t, peeked, "now")
	require.Contains(t, none, "no messages there")
	require.Regexp(t, `(?s)"payload":"now","priority":2.*"payload":"later","priority":0`, popped)
	for args, says := range map[string][]string{
		"LANE_UNKNOWN": {"push", "mail", "x", "--priority", "3"},
		"OUT_OF_RANGE": {"push", "mail", "x", "--priority", "10"},
		"OPTION_FIXED": {"queue", "configure", "mail", "--lanes", "4"},
	} {
		_, stderr, err := s.run(says...)
		require.Error(t, err)
		require.Contains(t, stderr+err.Error(), args)
	}
	_, _, err := s.run("queue", "configure", "wide", "--lanes", "8", "--shards", "9")
	require.ErrorContains(t, err, "must be at most 64")
}
