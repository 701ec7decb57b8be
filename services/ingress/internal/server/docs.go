package server

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"maps"
	"slices"
	"strings"
)

//go:embed docs.html.tmpl
var docsTemplate string

type docsData struct {
	Title, Description string
	Groups             []docsGroup
	Types              []docsType
}

type docsGroup struct {
	Name       string
	Operations []docsOperation
}

type docsOperation struct {
	Method, Path, ID, Summary, Role string
	Parameters                      []docsField
	Body                            string
	Responses                       []docsField
}

type docsType struct {
	Name, Description string
	Fields            []docsField
	Values            []string
}

type docsField struct {
	Name, Where, Type, Link, Description string
	Required                             bool
}

// spec is the part of the OpenAPI document that the page shows.
type spec struct {
	Info struct {
		Title       string `json:"title"`
		Description string `json:"description"`
	} `json:"info"`
	Paths       map[string]map[string]specOperation `json:"paths"`
	Definitions map[string]specSchema               `json:"definitions"`
}

type specOperation struct {
	ID         string   `json:"operationId"` //nolint:tagliatelle // OpenAPI's name
	Summary    string   `json:"summary"`
	Tags       []string `json:"tags"`
	Role       string   `json:"x-required-role"` //nolint:tagliatelle // OpenAPI's way
	Parameters []struct {
		Name        string     `json:"name"`
		In          string     `json:"in"`
		Type        string     `json:"type"`
		Description string     `json:"description"`
		Required    bool       `json:"required"`
		Schema      specSchema `json:"schema"`
	} `json:"parameters"`
	Responses map[string]struct {
		Description string     `json:"description"`
		Schema      specSchema `json:"schema"`
	} `json:"responses"`
}

type specSchema struct {
	Ref         string                `json:"$ref"`
	Type        string                `json:"type"`
	Format      string                `json:"format"`
	Title       string                `json:"title"`
	Description string                `json:"description"`
	Enum        []string              `json:"enum"`
	Items       *specSchema           `json:"items"`
	Properties  map[string]specSchema `json:"properties"`
}

// docsPage renders the document for people.
func docsPage(document []byte) ([]byte, error) {
	var s spec
	if err := json.Unmarshal(document, &s); err != nil {
		return nil, fmt.Errorf("docs page: %w", err)
	}
	t, err := template.New("docs").Parse(docsTemplate)
	if err != nil {
		return nil, fmt.Errorf("docs page: %w", err)
	}
	var page bytes.Buffer
	err = t.Execute(&page, docsData{Title: s.Info.Title, Description: s.Info.Description, Groups: s.groups(), Types: s.types()})
	if err != nil {
		return nil, fmt.Errorf("docs page: %w", err)
	}
	return page.Bytes(), nil
}

func (s spec) groups() []docsGroup {
	byTag := map[string][]docsOperation{}
	for _, path := range slices.Sorted(maps.Keys(s.Paths)) {
		for _, method := range slices.Sorted(maps.Keys(s.Paths[path])) {
			op := s.Paths[path][method]
			tag := "Other"
			if len(op.Tags) > 0 {
				tag = strings.TrimSuffix(op.Tags[0], "Service")
			}
			byTag[tag] = append(byTag[tag], op.show(strings.ToUpper(method), path))
		}
	}
	var out []docsGroup
	for _, tag := range []string{"Queue", "Admin", "Meta", "Other"} {
		if ops := byTag[tag]; len(ops) > 0 {
			out = append(out, docsGroup{Name: tag, Operations: ops})
		}
	}
	return out
}

func (op specOperation) show(method, path string) docsOperation {
	out := docsOperation{Method: method, Path: path, ID: op.ID, Summary: op.Summary, Role: op.Role}
	for _, p := range op.Parameters {
		if p.In == "body" {
			out.Body = p.Schema.link()
			continue
		}
		out.Parameters = append(out.Parameters, docsField{Name: p.Name, Where: p.In, Type: p.Type, Description: p.Description, Required: p.Required})
	}
	for _, status := range slices.Sorted(maps.Keys(op.Responses)) {
		r := op.Responses[status]
		out.Responses = append(out.Responses, docsField{Name: status, Link: r.Schema.link(), Description: r.Description})
	}
	return out
}

func (s spec) types() []docsType {
	var out []docsType
	for _, name := range slices.Sorted(maps.Keys(s.Definitions)) {
		d := s.Definitions[name]
		t := docsType{Name: name, Description: cmpText(d.Description, d.Title), Values: d.Enum}
		for _, field := range slices.Sorted(maps.Keys(d.Properties)) {
			p := d.Properties[field]
			t.Fields = append(t.Fields, docsField{Name: field, Type: p.typeName(), Link: p.link(), Description: cmpText(p.Description, p.Title)})
		}
		out = append(out, t)
	}
	return out
}

func cmpText(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// link is the definition that a schema refers to, directly or by its elements.
func (s specSchema) link() string {
	if s.Items != nil {
		return s.Items.link()
	}
	return strings.TrimPrefix(s.Ref, "#/definitions/")
}

func (s specSchema) typeName() string {
	switch {
	case s.Items != nil:
		return "list of " + cmpText(s.Items.typeName(), "values")
	case s.Ref != "":
		return s.link()
	case s.Format != "":
		return s.Type + " (" + s.Format + ")"
	}
	return cmpText(s.Type, "any JSON")
}
