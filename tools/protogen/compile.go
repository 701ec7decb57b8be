package main

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/bufbuild/protocompile"
	// Importing these is what makes the files resolvable: each registers its descriptor when linked in.
	_ "github.com/grpc-ecosystem/grpc-gateway/v2/protoc-gen-openapiv2/options"
	_ "google.golang.org/genproto/googleapis/api/annotations"
	_ "google.golang.org/genproto/googleapis/api/httpbody"
	_ "google.golang.org/genproto/googleapis/rpc/code"
	_ "google.golang.org/genproto/googleapis/rpc/errdetails"
	_ "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	_ "google.golang.org/protobuf/types/known/anypb"
	_ "google.golang.org/protobuf/types/known/durationpb"
	_ "google.golang.org/protobuf/types/known/emptypb"
	_ "google.golang.org/protobuf/types/known/fieldmaskpb"
	_ "google.golang.org/protobuf/types/known/structpb"
	_ "google.golang.org/protobuf/types/known/timestamppb"
	_ "google.golang.org/protobuf/types/known/wrapperspb"
)

// fileSet is a compiled tree: every file after the files it imports, ours and others'.
type fileSet struct {
	all  []*descriptorpb.FileDescriptorProto
	ours []string // names of the files found under postrider/, sorted
}

// public lists our files whose services are reachable from outside.
func (s fileSet) public() []string {
	var names []string
	for _, name := range s.ours {
		if !strings.HasPrefix(name, "postrider/internal/") {
			names = append(names, name)
		}
	}
	return names
}

// compile parses and links every .proto file under dir/postrider. The result carries source locations, so comments
// reach the generated code.
func compile(ctx context.Context, dir string) (fileSet, error) {
	ours, err := sources(dir)
	if err != nil {
		return fileSet{}, err
	}
	compiler := protocompile.Compiler{
		SourceInfoMode: protocompile.SourceInfoStandard,
		Resolver: protocompile.CompositeResolver{
			&protocompile.SourceResolver{Accessor: ownFiles(dir)},
			protocompile.ResolverFunc(linkedIn),
		},
	}
	linked, err := compiler.Compile(ctx, ours...)
	if err != nil {
		return fileSet{}, err
	}

	set := fileSet{ours: ours}
	seen := map[string]bool{}
	for _, file := range linked {
		set.add(file, seen)
	}
	return set, nil
}

// sources lists our .proto files relative to dir, sorted, so that the order of generation does not depend on the disk.
func sources(dir string) ([]string, error) {
	var names []string
	err := filepath.WalkDir(filepath.Join(dir, "postrider"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".proto" {
			return err
		}
		name, err := filepath.Rel(dir, path)
		names = append(names, filepath.ToSlash(name))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listing sources: %w", err)
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("no .proto file under %s/postrider", dir)
	}
	slices.Sort(names)
	return names, nil
}

// ownFiles opens files of the postrider tree and no others, so that a stray copy of a foreign file is never used.
func ownFiles(dir string) func(string) (io.ReadCloser, error) {
	return func(name string) (io.ReadCloser, error) {
		if !strings.HasPrefix(name, "postrider/") {
			return nil, fs.ErrNotExist
		}
		return os.Open(filepath.Join(dir, filepath.FromSlash(name)))
	}
}

// linkedIn finds a foreign file among the descriptors registered in this binary.
func linkedIn(name string) (protocompile.SearchResult, error) {
	file, err := protoregistry.GlobalFiles.FindFileByPath(name)
	if err != nil {
		return protocompile.SearchResult{}, fmt.Errorf("%s: no package linked into protogen registers it (see compile.go): %w", name, err)
	}
	return protocompile.SearchResult{Desc: file}, nil
}

// add appends file after everything it imports, each once.
func (s *fileSet) add(file protoreflect.FileDescriptor, seen map[string]bool) {
	if seen[file.Path()] {
		return
	}
	seen[file.Path()] = true
	imports := file.Imports()
	for i := range imports.Len() {
		s.add(imports.Get(i).FileDescriptor, seen)
	}
	descriptor := protodesc.ToFileDescriptorProto(file)
	if descriptor.SourceCodeInfo == nil {
		// A linked-in file has lost its comments; an empty table says so without a warning from the OpenAPI plugin.
		descriptor.SourceCodeInfo = &descriptorpb.SourceCodeInfo{}
	}
	s.all = append(s.all, descriptor)
}

// importMark is field 8042 of buf's image file, {is_import: true}. With it buf checks our files and not Google's; to
// everybody else it is an unknown field.
func importMark() []byte {
	mark := protowire.AppendTag(nil, 1, protowire.VarintType)
	mark = protowire.AppendVarint(mark, 1)
	field := protowire.AppendTag(nil, 8042, protowire.BytesType)
	return protowire.AppendBytes(field, mark)
}

// writeDescriptors writes the whole set as buf and protoc read it.
func writeDescriptors(path string, files fileSet) error {
	for _, file := range files.all {
		if !slices.Contains(files.ours, file.GetName()) {
			file.ProtoReflect().SetUnknown(importMark())
		}
	}
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(&descriptorpb.FileDescriptorSet{File: files.all})
	if err != nil {
		return fmt.Errorf("encoding descriptors: %w", err)
	}
	return os.WriteFile(path, raw, 0o600)
}
