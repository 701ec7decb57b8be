package config_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"postrider.dev/pkg/config"
)

type settings struct {
	config.Common

	LeaseTTL time.Duration `env:"LEASE_TTL" doc:"how long a delivery is leased"`
	Peers    []string      `env:"PEERS" doc:"static addresses"`
	Ratio    float64       `env:"RATIO" doc:"a ratio"`
	Cache    cacheSettings `envPrefix:"CACHE_"`
	Token    config.Secret `env:"TOKEN" doc:"a token"`
	Skipped  string        `env:"-"`
}

type cacheSettings struct {
	Bytes int64 `env:"BYTES" doc:"size of the cache"`
}

func defaults() settings {
	return settings{Common: config.Defaults(), LeaseTTL: 30 * time.Second, Peers: []string{"a:1", "b:2"}, Ratio: .5, Cache: cacheSettings{Bytes: 1 << 20}}
}

func TestDefaultsStandWhenNothingIsSet(t *testing.T) {
	t.Parallel()
	cfg, err := config.Load("dispatcher", defaults(), []string{"PATH=/bin", "POSTRIDER_LEASE_TTL=", "POSTRIDER_INGRESS_LEASE_TTL=1s"})
	require.NoError(t, err)
	require.Equal(t, defaults(), cfg)
	require.NoError(t, cfg.Validate())
}

func TestTheServicesOwnVariableWins(t *testing.T) {
	t.Parallel()
	cfg, err := config.Load("dispatcher", defaults(), []string{
		"POSTRIDER_LEASE_TTL=10s", "POSTRIDER_DISPATCHER_LEASE_TTL=20s",
		"POSTRIDER_POOL_SIZE=3", "POSTRIDER_DISPATCHER_CACHE_BYTES=7", "POSTRIDER_PEERS=x:1,y:2", "POSTRIDER_RATIO=0.25",
		"POSTRIDER_MIGRATE=false", "POSTRIDER_DATABASE_URL=postgres://a", "POSTRIDER_LOG_LEVEL=warn", "POSTRIDER_LOG_LEVEL=debug",
	})
	require.NoError(t, err)
	require.Equal(t, 20*time.Second, cfg.LeaseTTL)
	require.Equal(t, 3, cfg.PoolSize)
	require.EqualValues(t, 7, cfg.Cache.Bytes)
	require.Equal(t, []string{"x:1", "y:2"}, cfg.Peers)
	require.InDelta(t, .25, cfg.Ratio, 0)
	require.False(t, cfg.Migrate)
	require.Equal(t, "debug", cfg.LogLevel, "the last of two wins")
	require.Equal(t, "postgres://a", cfg.DirectURL().Reveal())
	require.Equal(t, cfg.Common, cfg.Shared())
}

func TestEveryProblemIsReportedByItsVariable(t *testing.T) {
	t.Parallel()
	_, err := config.Load("dispatcher", defaults(), []string{
		"POSTRIDER_DISPATCHER_LEASE_TTL=soon", "POSTRIDER_POOL_SIZE=many", "POSTRIDER_DISPATCHER_LEASE_TTl=1s", "POSTRIDER_DISPATCHER_LEASETTL=1s",
		"POSTRIDER_DISPATCHER_ENTIRELY_DIFFERENT_THING=1", "POSTRIDER_DISPATCHER_TOKEN_FILE=/nowhere/at/all",
		"POSTRIDER_DISPATCHER_REDIS_URL=a", "POSTRIDER_DISPATCHER_REDIS_URL_FILE=b", "POSTRIDER_DISPATCHER_ZONE_FILE=c",
	})
	require.Error(t, err)
	for _, line := range []string{
		"POSTRIDER_DISPATCHER_LEASE_TTL: not a time.Duration", "POSTRIDER_POOL_SIZE: not a int",
		"POSTRIDER_DISPATCHER_LEASETTL: no such variable; did you mean POSTRIDER_DISPATCHER_LEASE_TTL?",
		"POSTRIDER_DISPATCHER_LEASE_TTl: no such variable; did you mean POSTRIDER_DISPATCHER_LEASE_TTL?",
		"POSTRIDER_DISPATCHER_ENTIRELY_DIFFERENT_THING: no such variable",
		"POSTRIDER_DISPATCHER_TOKEN_FILE: stat /nowhere/at/all",
		"POSTRIDER_DISPATCHER_REDIS_URL: set both directly and by POSTRIDER_DISPATCHER_REDIS_URL_FILE",
		"POSTRIDER_DISPATCHER_ZONE_FILE: no such variable; only secrets come from files",
	} {
		require.ErrorContains(t, err, line)
	}
	require.NotContains(t, err.Error(), "THING: no such variable; did", "no suggestion is better than a silly one")
}

func TestAnAddressForTheOthersIsNoTypingMistake(t *testing.T) {
	t.Parallel()
	environ := []string{"POSTRIDER_MESHHINT_ADDR=meshhint-a:7405", "POSTRIDER_MESHHINT_ADDRS=a:1,b:2"}
	cfg, err := config.Load("meshhint", defaults(), environ)
	require.NoError(t, err, "every process of a host gets the same environment")
	require.Equal(t, defaults(), cfg)

	type client struct {
		Addr string `env:"MESHHINT_ADDR" doc:"where the sidecar is"`
	}
	other, err := config.Load("ingress", client{}, environ)
	require.NoError(t, err)
	require.Equal(t, "meshhint-a:7405", other.Addr)
}

func TestSecretsComeFromFiles(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(file, []byte("s3cret \n"), 0o600))
	cfg, err := config.Load("audit", defaults(), []string{"POSTRIDER_CLUSTER_SECRET_FILE=" + file, "POSTRIDER_TOKEN=shared", "POSTRIDER_AUDIT_TOKEN_FILE=" + file})
	require.NoError(t, err)
	require.Equal(t, "s3cret ", cfg.ClusterSecret.Reveal(), "only line ends are removed")
	require.Equal(t, "s3cret ", cfg.Token.Reveal(), "the service's file beats the shared variable")

	require.NoError(t, os.WriteFile(file, []byte("\n"), 0o600))
	_, err = config.Load("audit", defaults(), []string{"POSTRIDER_TOKEN_FILE=" + file})
	require.ErrorContains(t, err, "is empty")
	require.NoError(t, os.WriteFile(file, make([]byte, 65<<10), 0o600))
	_, err = config.Load("audit", defaults(), []string{"POSTRIDER_TOKEN_FILE=" + file})
	require.ErrorContains(t, err, "at most")
}

func TestSecretNeverPrints(t *testing.T) {
	t.Parallel()
	const content = "hunter2hunter2"
	cfg := defaults()
	cfg.Token, cfg.ClusterSecret, cfg.DatabaseURL = content, content, content

	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%T%v", "%10s"} {
		_, _ = fmt.Fprintf(&out, verb+"\n", cfg, cfg.Token)
		_, _ = fmt.Fprintf(&out, verb+"\n", cfg.Token, &cfg)
		_, _ = fmt.Fprintf(&out, verb+"\n", &cfg.Token, []config.Secret{cfg.Token})
	}
	_, _ = fmt.Fprintln(&out, cfg.Token, map[config.Secret]config.Secret{cfg.Token: cfg.Token}, fmt.Errorf("with %w %v", errors.New("x"), cfg.Token))
	require.NoError(t, json.NewEncoder(&out).Encode(cfg))
	require.NoError(t, json.NewEncoder(&out).Encode(map[string]any{"token": &cfg.Token, "all": []config.Secret{content}}))
	core := zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.AddSync(&out), zapcore.DebugLevel)
	zap.New(core).Info("x", zap.Any("cfg", cfg), zap.Any("secret", cfg.Token), zap.Stringer("s", cfg.Token), zap.Reflect("p", &cfg.Token))
	require.NoError(t, config.Help(&out, "dispatcher", cfg))

	require.NotContains(t, out.String(), content)
	require.NotContains(t, out.String(), fmt.Sprintf("%x", content))
	require.NotContains(t, strings.ToLower(out.String()), fmt.Sprintf("%x", content))
	require.Contains(t, out.String(), "***")
	require.Empty(t, config.Secret("").String(), "that a secret is missing may be seen")
}

func TestHelpListsEverySetting(t *testing.T) {
	t.Parallel()
	vars, err := config.List("mesh-hint", defaults())
	require.NoError(t, err)
	byName := make(map[string]config.Var)
	for _, v := range vars {
		byName[v.Name] = v
		require.NotEmpty(t, v.Doc)
	}
	require.Len(t, byName, 18)
	require.Equal(t, "30s", byName["POSTRIDER_MESH_HINT_LEASE_TTL"].Default)
	require.Equal(t, "duration", byName["POSTRIDER_MESH_HINT_LEASE_TTL"].Type)
	require.Equal(t, "POSTRIDER_LEASE_TTL", byName["POSTRIDER_MESH_HINT_LEASE_TTL"].Shared)
	require.Equal(t, "a:1,b:2", byName["POSTRIDER_MESH_HINT_PEERS"].Default)
	require.Equal(t, "int64", byName["POSTRIDER_MESH_HINT_CACHE_BYTES"].Type)
	require.True(t, byName["POSTRIDER_MESH_HINT_TOKEN"].Secret)

	var out bytes.Buffer
	require.NoError(t, config.Help(&out, "mesh-hint", defaults()))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, lines, 4+18)
	column := strings.Index(lines[3], "MEANING")
	for _, line := range lines[4:] {
		require.Equal(t, byte(' '), line[column-1], "the table is aligned: %q", line)
		require.NotEqual(t, byte(' '), line[column], "the table is aligned: %q", line)
	}
}

func TestListRefusesBadStructs(t *testing.T) {
	t.Parallel()
	_, err := config.List("x", struct {
		A string `env:"A"`
	}{})
	require.ErrorContains(t, err, "no doc tag")
	_, err = config.List("x", struct{ A string }{})
	require.ErrorContains(t, err, "no env tag")
	_, err = config.List("x", struct {
		A string `env:"A" doc:"a"`
		B string `env:"A" doc:"b"`
	}{})
	require.ErrorContains(t, err, "both called A")
	_, err = config.List("x", 5)
	require.ErrorContains(t, err, "not a struct")
}

func TestValuesThatHelpPrintsCanBeRead(t *testing.T) {
	t.Parallel()
	vars, err := config.List("scheduler", defaults())
	require.NoError(t, err)
	var environ []string
	for _, v := range vars {
		environ = append(environ, v.Name+"="+v.Default)
	}
	cfg, err := config.Load("scheduler", settings{}, environ)
	require.NoError(t, err)
	require.Equal(t, defaults(), cfg)
}

func FuzzLoad(f *testing.F) {
	f.Add("LEASE_TTL", "5s")
	f.Add("CACHE_BYTES", "9223372036854775808")
	f.Add("PEERS", ",,")
	f.Add("TOKEN", "%s\x00\xff")
	f.Add("", "=")
	f.Fuzz(func(t *testing.T, name, value string) {
		if strings.HasSuffix(name, "_FILE") {
			return // would read files of this machine
		}
		cfg, err := config.Load("dispatcher", defaults(), []string{"POSTRIDER_DISPATCHER_" + name + "=" + value})
		if err == nil && cfg.Token != "" {
			require.Equal(t, value, cfg.Token.Reveal())
		}
	})
}
