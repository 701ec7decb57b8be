package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/pluginpb"
)

// plugin is one code generator and what it is told.
type plugin struct {
	name      string
	parameter string
	public    bool // run on the public packages only
}

func plugins(openapiConfig string) []plugin {
	return []plugin{
		{name: "protoc-gen-go", parameter: "module=postrider.dev/proto/gen"},
		{name: "protoc-gen-go-grpc", parameter: "module=postrider.dev/proto/gen,require_unimplemented_servers=true"},
		{name: "protoc-gen-grpc-gateway", parameter: "module=postrider.dev/proto/gen,generate_unbound_methods=false", public: true},
		{
			name: "protoc-gen-openapiv2",
			parameter: "allow_merge=true,merge_file_name=postrider,generate_unbound_methods=false," +
				"openapi_naming_strategy=simple,simple_operation_ids=true,disable_default_errors=true," +
				"openapi_configuration=" + openapiConfig,
			public: true,
		},
	}
}

// generate runs every plugin and makes the output folder hold exactly what they produced: files that nobody produces any
// longer are removed, files that did not change keep their time, so nothing is rebuilt for nothing.
func generate(ctx context.Context, files fileSet, pluginDir, outDir string) error {
	config, err := writeOpenapiConfig(files)
	if err != nil {
		return fmt.Errorf("openapi configuration: %w", err)
	}
	defer func() { _ = os.Remove(config) }() // a leftover in the temporary folder harms nobody

	output := map[string]string{}
	for _, p := range plugins(config) {
		if err := p.run(ctx, files, pluginDir, output); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	if _, ok := output[openapiFile]; ok {
		output["openapi/openapi_gen.go"] = openapiPackage
	}
	for name, content := range output {
		if err := writeIfChanged(filepath.Join(outDir, filepath.FromSlash(name)), []byte(content)); err != nil {
			return err
		}
	}
	return removeOthers(outDir, output)
}

// run adds the files of one plugin to output.
func (p plugin) run(ctx context.Context, files fileSet, dir string, output map[string]string) error {
	request := &pluginpb.CodeGeneratorRequest{Parameter: &p.parameter, ProtoFile: files.all}
	request.FileToGenerate = files.ours
	if p.public {
		request.FileToGenerate = files.public()
	}
	if len(request.GetFileToGenerate()) == 0 {
		return nil
	}
	response, err := p.call(ctx, dir, request)
	if err != nil {
		return err
	}
	for _, file := range response.GetFile() {
		name := file.GetName()
		if name == "postrider.swagger.json" {
			name = openapiFile
		}
		if _, twice := output[name]; twice {
			return fmt.Errorf("%s is generated twice", name)
		}
		output[name] = file.GetContent()
	}
	return nil
}

// call speaks the plugin protocol: a request on standard input, a response on standard output.
func (p plugin) call(ctx context.Context, dir string, request *pluginpb.CodeGeneratorRequest) (*pluginpb.CodeGeneratorResponse, error) {
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(request)
	if err != nil {
		return nil, err
	}
	path, err := filepath.Abs(filepath.Join(dir, p.name))
	if err != nil {
		return nil, err
	}
	var stdout bytes.Buffer
	command := exec.CommandContext(ctx, path)
	command.Stdin, command.Stdout, command.Stderr = bytes.NewReader(raw), &stdout, os.Stderr
	if err := command.Run(); err != nil {
		return nil, err
	}
	response := &pluginpb.CodeGeneratorResponse{}
	if err := proto.Unmarshal(stdout.Bytes(), response); err != nil {
		return nil, err
	}
	if response.Error != nil {
		return nil, errors.New(response.GetError())
	}
	return response, nil
}

// writeIfChanged leaves a file alone that already has the content.
func writeIfChanged(path string, content []byte) error {
	old, err := os.ReadFile(path)
	if err == nil && bytes.Equal(old, content) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, content, 0o644)
}

// removeOthers deletes generated files that are not in keep. Everything below dir is generated, by definition.
func removeOthers(dir string, keep map[string]string) error {
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if _, ok := keep[filepath.ToSlash(name)]; ok {
			return nil
		}
		return os.Remove(path)
	})
}
