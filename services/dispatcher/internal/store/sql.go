package store

import (
	"embed"
	"fmt"
	"io/fs"
	"regexp"
	"strings"
)

//go:embed *.sql
var sqlFiles embed.FS

// book is the statements of the .sql files by name. A block begins with "-- name: x"; @params become $n in the order in which they first appear.
type book map[string]statement

type statement struct {
	raw    string // with @params
	text   string // with $n
	params []string
}

// readBook reads the embedded files. They are part of the program, so a fault in them is a fault in us.
func readBook() book {
	b := make(book)
	files, err := fs.Glob(sqlFiles, "*.sql")
	if err != nil {
		panic(err)
	}
	for _, file := range files {
		text, err := fs.ReadFile(sqlFiles, file)
		if err != nil {
			panic(err)
		}
		b.read(string(text))
	}
	return b
}

func (b book) read(text string) {
	for block := range strings.SplitSeq("\n"+text, "\n-- name: ") {
		name, body, _ := strings.Cut(block, "\n")
		if name = strings.TrimSpace(name); name == "" {
			continue // what stands before the first name
		}
		if _, twice := b[name]; twice {
			panic(fmt.Sprintf("statement %s is there twice", name))
		}
		b[name] = number(body)
	}
}

// text returns a statement's text; it is one of the package's own names.
func (b book) text(name string) string {
	s, ok := b[name]
	if !ok {
		panic("no statement " + name)
	}
	return s.text
}

// number replaces @params and drops comments.
func number(raw string) statement {
	var lines []string
	for line := range strings.Lines(raw) {
		if code, _, _ := strings.Cut(strings.TrimRight(line, "\n"), "--"); strings.TrimSpace(code) != "" {
			lines = append(lines, code)
		}
	}
	s := statement{raw: strings.TrimSuffix(strings.TrimSpace(strings.Join(lines, "\n")), ";")}
	seen := make(map[string]int)
	s.text = regexp.MustCompile(`@[a-z_]+`).ReplaceAllStringFunc(s.raw, func(param string) string {
		if seen[param] == 0 {
			s.params = append(s.params, param[1:])
			seen[param] = len(s.params)
		}
		return fmt.Sprintf("$%d", seen[param])
	})
	return s
}
