package config

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/caarlos0/env/v11"
)

// Prefix begins the name of every variable.
const Prefix = "POSTRIDER_"

// fileSuffix marks the variable that names a file with a Secret in it.
const fileSuffix = "_FILE"

// maxSecretFile bounds what is read from the file of a Secret.
const maxSecretFile = 64 << 10

// Load returns defaults overridden by environ ("NAME=value" strings, as from os.Environ) for the named service. The error lists every problem:
// values that do not parse, files that cannot be read, and variables with the service's prefix that no field has.
// It does not call Validate.
func Load[C any](service string, defaults C, environ []string) (C, error) {
	cfg := defaults
	vars, err := List(service, defaults)
	if err != nil {
		return defaults, err
	}
	given := split(environ)
	values := make(map[string]string, len(vars))
	used := make(map[string]string, len(vars)) // Go field name -> variable it came from
	problems := []error{unknown(service, vars, given)}
	for _, v := range vars {
		source, value, err := v.lookup(given)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		if value != "" {
			values[v.key] = value
			used[v.field] = source
		}
	}
	problems = append(problems, parse(&cfg, values, used))
	return cfg, errors.Join(problems...)
}

// parse fills cfg and names the variable, not the Go field, in each error.
func parse(cfg any, values, used map[string]string) error {
	err := env.ParseWithOptions(cfg, env.Options{Environment: values})
	var all env.AggregateError
	if !errors.As(err, &all) {
		return err
	}
	problems := make([]error, 0, len(all.Errors))
	for _, err := range all.Errors {
		if p, ok := errors.AsType[env.ParseError](err); ok {
			err = fmt.Errorf("%s: not a %v: %w", used[p.Name], p.Type, p.Err)
		}
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}

// split returns the variables of environ that are ours; the last of several values wins, as in a shell.
func split(environ []string) map[string]string {
	given := make(map[string]string)
	for _, line := range environ {
		name, value, ok := strings.Cut(line, "=")
		if ok && strings.HasPrefix(name, Prefix) {
			given[name] = value
		}
	}
	return given
}

// lookup returns the variable that v is set by and its value; the service's own names come before the shared ones.
func (v Var) lookup(given map[string]string) (source, value string, err error) {
	for _, name := range v.Names() {
		direct, file := given[name], ""
		if v.Secret {
			file = given[name+fileSuffix]
		}
		switch {
		case direct != "" && file != "":
			return "", "", fmt.Errorf("%s: set both directly and by %s", name, name+fileSuffix)
		case direct != "":
			return name, direct, nil
		case file != "":
			value, err := readSecret(file)
			if err != nil {
				return "", "", fmt.Errorf("%s: %w", name+fileSuffix, err)
			}
			return name + fileSuffix, value, nil
		}
	}
	return "", "", nil
}

// readSecret returns the content of a file without the line ends that editors and `echo` leave behind.
func readSecret(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if info.Size() > maxSecretFile {
		return "", fmt.Errorf("%s: has %d bytes, at most %d are allowed", path, info.Size(), maxSecretFile)
	}
	b, err := os.ReadFile(path) //nolint:gosec // G304: the operator names the file.
	if err != nil {
		return "", err
	}
	value := strings.TrimRight(string(b), "\r\n")
	if value == "" {
		return "", fmt.Errorf("%s: is empty", path)
	}
	return value, nil
}

// unknown returns an error for each given variable with the service's prefix that no field has.
func unknown(service string, vars []Var, given map[string]string) error {
	known := make(map[string]bool)
	for _, v := range vars {
		for _, name := range v.Names() {
			known[name] = true
			if v.Secret {
				known[name+fileSuffix] = true
			}
		}
	}
	prefix := servicePrefix(service)
	var problems []error
	for name := range given {
		if name == prefix+"ADDR" || name == prefix+"ADDRS" {
			continue // how the others find this service: their MESHHINT_ADDR, shared, is spelt like an ADDR of our own
		}
		if strings.HasPrefix(name, prefix) && !known[name] {
			problems = append(problems, unknownError(name, known))
		}
	}
	slices.SortFunc(problems, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(problems...)
}

func unknownError(name string, known map[string]bool) error {
	if base, ok := strings.CutSuffix(name, fileSuffix); ok && known[base] {
		return fmt.Errorf("%s: no such variable; only secrets come from files", name)
	}
	best, distance := "", len(name)/3+1 // further away than this is no likeness
	for candidate := range known {
		d := editDistance(name, candidate)
		if d < distance || (d == distance && best != "" && candidate < best) {
			best, distance = candidate, d
		}
	}
	if best == "" {
		return fmt.Errorf("%s: no such variable", name)
	}
	return fmt.Errorf("%s: no such variable; did you mean %s?", name, best)
}

// editDistance is the Levenshtein distance in bytes.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			substitute := diagonal
			if a[i] != b[j] {
				substitute++
			}
			diagonal = row[j+1]
			row[j+1] = min(substitute, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
