package window_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/domain/settled"
	"postrider.dev/services/dispatcher/internal/domain/window"
)

func TestStandingFollowsFromTheRows(t *testing.T) {
	t.Parallel()
	const key, other, now = 7, 8, 1000
	leased := func(hash uint64, off window.Offset) []window.LeaseRow {
		return []window.LeaseRow{{Epoch: 1, ExpiresAt: 2000, Holder: "w@x", Entries: window.EncodeEntries(nil, false, []window.Entry{{Offset: off, Hash: hash, Size: 1}})}}
	}
	failed := func(hash uint64, off window.Offset, at window.DBTime) []window.RetryRow {
		return []window.RetryRow{{Offset: off, PartitionHash: hash, Failures: 1, Deliveries: 2, AvailableAt: at, AloneThrough: -1, LastError: "boom"}}
	}
	ordered := window.Policy{Mode: queue.Ordered, OnFailure: queue.Block}
	skip := window.Policy{Mode: queue.Ordered, OnFailure: queue.Skip}
	shared := window.Policy{Mode: queue.Shared}
	delayed := window.Policy{Mode: queue.Ordered, OnFailure: queue.Block, Delay: 600 * time.Microsecond} // the message was pushed at 500
	over := window.Policy{Mode: queue.Ordered, OnFailure: queue.Block, Delay: 500 * time.Microsecond}
	for _, c := range []struct {
		name   string
		policy window.Policy
		leases []window.LeaseRow
		rows   []window.RetryRow
		want   window.Standing
	}{
		{"ready", ordered, nil, nil, window.Standing{Place: window.Ready, BlockedBy: -1}},
		{"leased", ordered, leased(key, 15), nil, window.Standing{Place: window.Leased, Holder: "w@x", ExpiresAt: 2000, Attempt: 1, BlockedBy: -1}},
		{
			"leased again", ordered, leased(key, 15), failed(key, 15, 900),
			window.Standing{Place: window.Leased, Holder: "w@x", ExpiresAt: 2000, Attempt: 3, Failures: 1, LastError: "boom", BlockedBy: -1},
		},
		{"waiting", ordered, nil, failed(key, 15, 1001), window.Standing{Place: window.Waiting, Failures: 1, LastError: "boom", RetryAt: 1001, BlockedBy: -1}},
		{"due", ordered, nil, failed(key, 15, now), window.Standing{Place: window.Ready, Failures: 1, LastError: "boom", BlockedBy: -1}},
		{"behind a leased one", ordered, leased(key, 12), nil, window.Standing{Place: window.Blocked, BlockedBy: 12}},
		{"behind a leased one, shared", shared, leased(key, 12), nil, window.Standing{Place: window.Ready, BlockedBy: -1}},
		{"beside another partition's", ordered, leased(other, 12), failed(other, 13, 1001), window.Standing{Place: window.Ready, BlockedBy: -1}},
		{"behind a waiting one", ordered, nil, failed(key, 12, 1001), window.Standing{Place: window.Blocked, BlockedBy: 12}},
		{"behind a waiting one, skipping", skip, nil, failed(key, 12, 1001), window.Standing{Place: window.Ready, BlockedBy: -1}},
		{"before a waiting one", ordered, nil, failed(key, 16, 1001), window.Standing{Place: window.Ready, BlockedBy: -1}},
		{"behind a settled one's row", ordered, nil, failed(key, 3, 1001), window.Standing{Place: window.Ready, BlockedBy: -1}},
		{"too young", delayed, nil, nil, window.Standing{Place: window.Waiting, RetryAt: 1100, BlockedBy: -1}},
		{"old enough", over, nil, nil, window.Standing{Place: window.Ready, BlockedBy: -1}},
		{"too young, behind a leased one", delayed, leased(key, 12), nil, window.Standing{Place: window.Waiting, RetryAt: 1100, BlockedBy: -1}},
		{
			"leased before the delay was longer", delayed, leased(key, 15), nil,
			window.Standing{Place: window.Leased, Holder: "w@x", ExpiresAt: 2000, Attempt: 1, BlockedBy: -1},
		},
		{
			"failed before the delay was longer", delayed, nil, failed(key, 15, 1001),
			window.Standing{Place: window.Waiting, Failures: 1, LastError: "boom", RetryAt: 1001, BlockedBy: -1},
		},
		{
			"due again before the delay was longer", delayed, nil, failed(key, 15, now),
			window.Standing{Place: window.Ready, Failures: 1, LastError: "boom", BlockedBy: -1},
		},
	} {
		s := window.Snapshot{Row: window.Row{ID: 1, Version: 1, Hot: settled.Start(10), Low: 10}, Leases: c.leases, Retries: c.rows}
		got, err := window.Stand(s, c.policy, window.Asked{Offset: 15, Hash: key, At: 500}, now)
		require.NoError(t, err, c.name)
		require.Equal(t, c.want, got, c.name)
		got, err = window.Stand(s, c.policy, window.Asked{Offset: 9, Hash: key, At: 500}, now)
		require.NoError(t, err)
		require.Equal(t, window.Settled, got.Place, c.name)
	}
	_, err := window.Stand(window.Snapshot{Row: window.Row{Hot: settled.Start(0)}, Leases: []window.LeaseRow{{Entries: []byte{0}}}}, ordered, window.Asked{Offset: 1, Hash: key}, now)
	require.ErrorIs(t, err, window.ErrCorrupt)
}
