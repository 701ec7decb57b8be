package config

import (
	"encoding"
	"fmt"
	"io"
	"reflect"
	"strings"
	"text/tabwriter"
)

// Var describes one setting. Documentation and the arch tests are made from it.
type Var struct {
	Name    string `json:"name"`             // the service's own variable, POSTRIDER_DISPATCHER_LEASE_TTL
	Shared  string `json:"shared"`           // the variable that sets it for every service, POSTRIDER_LEASE_TTL
	Type    string `json:"type"`             // duration, int, bool, string, secret, ...
	Default string `json:"default"`          // as it would be written in the environment; secrets as ***
	Doc     string `json:"doc"`              // one line
	Secret  bool   `json:"secret,omitempty"` // may also come from a file, by Name_FILE or Shared_FILE

	key   string // the name without any prefix
	field string // the Go field
}

// Names returns the variables that set v, the winning one first.
func (v Var) Names() []string { return []string{v.Name, v.Shared} }

func servicePrefix(service string) string {
	return Prefix + strings.ToUpper(strings.ReplaceAll(service, "-", "_")) + "_"
}

// List returns the settings of cfg, a struct with its defaults, in the order of its fields. It is an error if a field has no doc or a name is
// used twice.
func List(service string, cfg any) ([]Var, error) {
	v := reflect.ValueOf(cfg)
	if v.Kind() != reflect.Struct {
		return nil, fmt.Errorf("config of %s: is a %v, not a struct", service, v.Kind())
	}
	vars, err := walk(servicePrefix(service), "", v)
	if err != nil {
		return nil, fmt.Errorf("config of %s: %w", service, err)
	}
	seen := make(map[string]string, len(vars))
	for _, v := range vars {
		if first, ok := seen[v.key]; ok {
			return nil, fmt.Errorf("config of %s: fields %s and %s are both called %s", service, first, v.field, v.key)
		}
		seen[v.key] = v.field
	}
	return vars, nil
}

func walk(prefix, group string, v reflect.Value) ([]Var, error) {
	var vars []Var
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if !f.IsExported() {
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("env"), ",")
		switch {
		case name == "-":
		case name == "" && f.Type.Kind() == reflect.Struct:
			nested, err := walk(prefix, group+f.Tag.Get("envPrefix"), v.Field(i))
			if err != nil {
				return nil, err
			}
			vars = append(vars, nested...)
		case name == "":
			return nil, fmt.Errorf("field %s has no env tag", f.Name)
		case f.Tag.Get("doc") == "":
			return nil, fmt.Errorf("field %s has no doc tag", f.Name)
		default:
			vars = append(vars, newVar(prefix, group+name, f, v.Field(i)))
		}
	}
	return vars, nil
}

func newVar(prefix, key string, f reflect.StructField, v reflect.Value) Var {
	return Var{
		Name:    prefix + key,
		Shared:  Prefix + key,
		Type:    typeName(f.Type),
		Default: text(v),
		Doc:     f.Tag.Get("doc"),
		Secret:  f.Type == reflect.TypeFor[Secret](),
		key:     key,
		field:   f.Name,
	}
}

func typeName(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[Secret]():
		return "secret"
	case t.Kind() == reflect.Slice:
		return typeName(t.Elem()) + ",..."
	case t.Kind() == reflect.Map:
		return typeName(t.Key()) + ":" + typeName(t.Elem()) + ",..."
	case t.Kind() == reflect.Pointer:
		return typeName(t.Elem())
	case t.PkgPath() != "":
		return strings.ToLower(t.Name())
	}
	return t.Kind().String()
}

// text writes v as the environment would.
func text(v reflect.Value) string {
	if v.Kind() == reflect.Slice {
		items := make([]string, v.Len())
		for i := range items {
			items[i] = text(v.Index(i))
		}
		return strings.Join(items, ",")
	}
	if (v.Kind() == reflect.Map || v.Kind() == reflect.Pointer) && v.IsNil() {
		return ""
	}
	if m, ok := v.Interface().(encoding.TextMarshaler); ok {
		if b, err := m.MarshalText(); err == nil {
			return string(b)
		}
	}
	return fmt.Sprint(v.Interface())
}

// Help writes the table of settings that -help-config prints.
func Help(w io.Writer, service string, cfg any) error {
	vars, err := List(service, cfg)
	if err != nil {
		return err
	}
	prefix := servicePrefix(service)
	if _, err := fmt.Fprintf(w, "Settings of %s. A variable may be written %s<NAME>, for this service alone, or %s<NAME>, for all; the first wins.\n"+
		"A secret may be in a file named by <NAME>%s.\n\n", service, prefix, Prefix, fileSuffix); err != nil {
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "NAME\tTYPE\tDEFAULT\tMEANING") // errors stick to t and are returned by Flush
	for _, v := range vars {
		def := v.Default
		if def == "" {
			def = "-"
		}
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", v.key, v.Type, def, v.Doc)
	}
	return t.Flush()
}
