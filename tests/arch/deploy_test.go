package arch_test

import (
	"go/ast"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// deployFiles are the files that set environment variables of our services.
func deployFiles(t *testing.T) []string {
	t.Helper()
	files := []string{"docker-compose.yml", "Tiltfile", "deploy/Dockerfile"}
	for _, name := range repositoryFiles(t) {
		if strings.HasPrefix(name, "deploy/") && (strings.HasSuffix(name, ".yml") || strings.HasSuffix(name, ".yaml") || strings.HasSuffix(name, ".env")) {
			files = append(files, name)
		}
	}
	return files
}

// settings lists every variable that some service reads, from the `env` tags of the Configs.
func settings(t *testing.T) map[string]bool {
	t.Helper()
	shared := envTags(t, "pkg/config/common.go")
	known := map[string]bool{}
	add := func(service string, names []string) {
		for _, name := range names {
			for _, prefix := range []string{"POSTRIDER_", "POSTRIDER_" + strings.ToUpper(service) + "_"} {
				known[prefix+name] = true
				known[prefix+name+"_FILE"] = true
			}
		}
	}
	services, err := os.ReadDir(filepath.Join(root, "services"))
	require.NoError(t, err)
	for _, service := range services {
		add(service.Name(), shared)
		add(service.Name(), envTags(t, "services/"+service.Name()+"/config.go"))
	}
	return known
}

// envTags reads the names in the `env:"NAME"` tags of a Go file.
func envTags(t *testing.T, name string) []string {
	t.Helper()
	var names []string
	_, file := parse(t, name)
	ast.Inspect(file, func(node ast.Node) bool {
		field, ok := node.(*ast.Field)
		if !ok || field.Tag == nil {
			return true
		}
		tag, err := strconv.Unquote(field.Tag.Value)
		require.NoError(t, err)
		if env := reflect.StructTag(tag).Get("env"); env != "" {
			variable, _, _ := strings.Cut(env, ",")
			names = append(names, variable)
		}
		return true
	})
	return names
}

func TestDeployedSettingsExist(t *testing.T) {
	t.Parallel()
	known := settings(t)
	pattern := regexp.MustCompile(`\bPOSTRIDER_[A-Z0-9_]+`)
	var findings []string

	for _, name := range deployFiles(t) {
		content, err := os.ReadFile(filepath.Join(root, name))
		require.NoError(t, err)
		for _, variable := range pattern.FindAllString(string(content), -1) {
			if !known[variable] {
				findings = append(findings, name+" sets "+variable)
			}
		}
	}

	report(t, "a deployment file sets a variable that no service reads", findings)
}

// A machine without docker-compose checks less, and says so; in CI that is a failure.
func TestComposeFileIsValid(t *testing.T) {
	t.Parallel()
	path, err := exec.LookPath("docker-compose")
	if err != nil {
		require.Empty(t, os.Getenv("CI"), "docker-compose is missing: apt-get install docker-compose")
		t.Log("NOT CHECKED by docker-compose, which is missing here: only read as YAML")
		return
	}

	cmd := exec.CommandContext(t.Context(), path, "-f", "docker-compose.yml", "config", "--quiet")
	cmd.Dir = root
	output, err := cmd.CombinedOutput()

	require.NoError(t, err, string(output))
}

func TestComposeRunsTwoHostsOfFiveServices(t *testing.T) {
	t.Parallel()

	services := composeServices(t)

	for _, name := range []string{
		"postgres", "redis", "migrate", "scheduler", "audit",
		"ingress-a", "dispatcher-a", "meshhint-a", "ingress-b", "dispatcher-b", "meshhint-b",
	} {
		require.Contains(t, services, name)
	}
	for name, service := range services {
		if name != "postgres" && name != "redis" && name != "migrate" && name != "spools" {
			require.Contains(t, strings.Join(service.Healthcheck.Test, " "), "healthcheck", "%s asks its own binary for health", name)
		}
	}
}
