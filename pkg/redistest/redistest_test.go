package redistest_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"postrider.dev/pkg/redistest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, redistest.IgnoreProbe()) }

func client(t *testing.T, url string) *redis.Client {
	t.Helper()
	opts, err := redis.ParseURL(url)
	require.NoError(t, err)
	opts.DisableIdentity = true
	c := redis.NewClient(opts)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

func TestBothExpireKeysByTheClock(t *testing.T) {
	t.Parallel()
	for name, url := range map[string]string{"real": redistest.Start(t).URL(), "mini": "redis://" + redistest.Mini(t).Addr()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := client(t, url)
			require.NoError(t, c.Set(t.Context(), "k", "v", 100*time.Millisecond).Err())
			require.Equal(t, "v", c.Get(t.Context(), "k").Val())

			require.Eventually(t, func() bool { return c.Exists(t.Context(), "k").Val() == 0 }, 10*time.Second, 10*time.Millisecond)
		})
	}
}

func TestRestartedServerIsEmptyAndAtTheSameAddresses(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	socket, tcp := client(t, server.URL()), client(t, server.TCPURL())
	require.NoError(t, socket.Set(t.Context(), "k", "v", 0).Err())
	require.Equal(t, "v", tcp.Get(t.Context(), "k").Val())

	server.Restart()

	require.NoError(t, socket.Ping(t.Context()).Err())
	require.Equal(t, int64(0), tcp.Exists(t.Context(), "k").Val())
}
