package arch_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gopkg.in/yaml.v3"
)

// composeService is the part of a compose service that tests look at.
type composeService struct {
	Healthcheck struct {
		Test []string `yaml:"test"`
	} `yaml:"healthcheck"`
	Environment map[string]string `yaml:"environment"`
	Volumes     []string          `yaml:"volumes"`
	Entrypoint  []string          `yaml:"entrypoint"`
	DependsOn   map[string]struct {
		Condition string `yaml:"condition"`
	} `yaml:"depends_on"`
}

// composeServices reads docker-compose.yml without any engine.
func composeServices(t *testing.T) map[string]composeService {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(root, "docker-compose.yml"))
	require.NoError(t, err)
	var file struct {
		Services map[string]composeService `yaml:"services"`
	}
	require.NoError(t, yaml.Unmarshal(raw, &file))
	return file.Services
}

func TestEachDispatcherOfComposeHasASpoolThatItMayWrite(t *testing.T) {
	t.Parallel()
	dockerfile, err := os.ReadFile(filepath.Join(root, "deploy/Dockerfile"))
	require.NoError(t, err)
	user := regexp.MustCompile(`(?m)^USER (\S+)$`).FindStringSubmatch(string(dockerfile))
	require.NotNil(t, user)
	services := composeServices(t)
	owner := services["spools"]
	require.Equal(t, []string{"chown", user[1]}, owner.Entrypoint[:2])

	taken := map[string]string{}
	for name, service := range services {
		if !strings.HasPrefix(name, "dispatcher-") {
			continue
		}
		dir := service.Environment["POSTRIDER_DISPATCHER_SPOOL_DIR"]
		require.NotEmpty(t, dir, name)
		require.Len(t, service.Volumes, 1)
		volume, at, _ := strings.Cut(service.Volumes[0], ":")
		require.Equal(t, dir, at, "it outlives the container")
		require.Empty(t, taken[volume], "a spool belongs to one dispatcher")
		taken[volume] = name
		require.Contains(t, owner.Volumes, volume+":/"+volume)
		require.Contains(t, owner.Entrypoint, "/"+volume)
		require.Equal(t, "service_completed_successfully", service.DependsOn["spools"].Condition, name)
		require.Contains(t, service.DependsOn, "migrate", name)
	}
	require.Len(t, taken, 2)
}
