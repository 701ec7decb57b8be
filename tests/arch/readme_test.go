package arch_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// blocks returns the fenced blocks of a language in a document.
func blocks(t *testing.T, document, language string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, document))
	require.NoError(t, err)
	var list []string
	for part := range strings.SplitSeq(string(text), "\n```"+language+"\n") {
		if body, _, ok := strings.Cut(part, "\n```"); ok {
			list = append(list, body+"\n")
		}
	}
	return list[1:] // before the first fence there is no block
}

func TestTheProgramsInTheDocumentsCompile(t *testing.T) {
	t.Parallel()
	for _, document := range []string{"README.md", "docs/queues.md"} {
		for _, program := range blocks(t, document, "go") {
			if !strings.HasPrefix(program, "package ") {
				continue // a fragment
			}
			dir := t.TempDir()
			file := filepath.Join(dir, "main.go")
			require.NoError(t, os.WriteFile(file, []byte(program), 0o600))
			cmd := exec.CommandContext(t.Context(), "go", "vet", file)
			cmd.Dir = filepath.Join(root, "sdk")
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s: %s", document, out)
			diff, err := exec.CommandContext(t.Context(), "gofmt", "-l", file).CombinedOutput()
			require.NoError(t, err)
			require.Empty(t, string(diff), "%s: not formatted", document)
		}
	}
}
