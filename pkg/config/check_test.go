package config_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/config"
)

func TestChecksAcceptTheGood(t *testing.T) {
	t.Parallel()
	for _, err := range []error{
		config.Positive("N", 1), config.Positive("D", time.Nanosecond), config.Between("N", 1, 1, 1), config.Below("N", 1, 2), config.AtMost("N", 2, 2),
		config.OneOf("N", "a", "b", "a"), config.NotEmpty("N", "x"), config.NotEmpty("N", config.Secret("x")),
		config.LongSecret("N", "", 16), config.LongSecret("N", "0123456789abcdef", 16),
		config.Address("N", "127.0.0.1:7400"), config.Address("N", ":0"), config.Address("N", "[::1]:80"), config.Address("N", "mem:x"),
		config.NonLoopbackNeeds("N", "127.0.0.1:1", "S", ""), config.NonLoopbackNeeds("N", "localhost:1", "S", ""),
		config.NonLoopbackNeeds("N", "[::1]:1", "S", ""), config.NonLoopbackNeeds("N", "mem:x", "S", ""), config.NonLoopbackNeeds("N", "", "S", ""),
		config.NonLoopbackNeeds("N", "0.0.0.0:1", "S", "secret"),
	} {
		require.NoError(t, err)
	}
}

func TestChecksRefuseTheBadByName(t *testing.T) {
	t.Parallel()
	for want, err := range map[string]error{
		"N: 0 must be positive":                                               config.Positive("N", 0),
		"N: 5s must be between 1s and 3s":                                     config.Between("N", 5*time.Second, time.Second, 3*time.Second),
		"N: 2 must be below 2":                                                config.Below("N", 2, 2),
		"N: 3 must be at most 2":                                              config.AtMost("N", 3, 2),
		`N: "c" must be one of a, b`:                                          config.OneOf("N", "c", "a", "b"),
		"N: must be set":                                                      config.NotEmpty("N", ""),
		"N: has 5 bytes, at least 16 are needed":                              config.LongSecret("N", "short", 16),
		`N: "localhost" is not host:port`:                                     config.Address("N", "localhost"),
		`N: "localhost:http" has no port number`:                              config.Address("N", "localhost:http"),
		`N: "mem:" has no port number`:                                        config.Address("N", "mem:"),
		`N: "x:99999" has no port number`:                                     config.Address("N", "x:99999"),
		`N: ":1" can be reached from other machines, so S must be set`:        config.NonLoopbackNeeds("N", ":1", "S", ""),
		`N: "0.0.0.0:1" can be reached from other machines, so S must be set`: config.NonLoopbackNeeds("N", "0.0.0.0:1", "S", ""),
		`N: "[::]:1" can be reached from other machines, so S must be set`:    config.NonLoopbackNeeds("N", "[::]:1", "S", ""),
		`N: "host:1" can be reached from other machines, so S must be set`:    config.NonLoopbackNeeds("N", "host:1", "S", ""),
	} {
		require.EqualError(t, err, want)
	}
}

func TestCommonReportsEveryProblem(t *testing.T) {
	t.Parallel()
	err := config.Common{PoolSize: -1, AdminAddr: ":7402", LogLevel: "loud", DrainTimeout: -1}.Validate()
	for _, name := range []string{"POOL_SIZE", "ADMIN_ADDR", "LOG_LEVEL", "LOG_FORMAT", "DRAIN_TIMEOUT"} {
		require.ErrorContains(t, err, name)
	}
	require.NotEmpty(t, config.Common{}.Host())
	require.Equal(t, "h1", config.Common{HostID: "h1"}.Host())
}
