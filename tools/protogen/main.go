// Command protogen turns proto/postrider into proto/gen without a network and without a copy of anybody's .proto files.
//
// The sources are compiled in this process (bufbuild/protocompile). What they import from elsewhere, such as
// google/api/annotations.proto, is taken from the descriptors that the Go packages of those files register when they
// are linked in, so the version is the one that go.mod pins. The four plugins, installed from the same go.mod, then run
// on the result as protoc would run them.
//
//	protogen -proto proto -plugins bin                 writes proto/gen
//	protogen -proto proto -descriptors all.binpb       writes a descriptor set for buf, nothing else
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "protogen:", err)
		os.Exit(1)
	}
}

// run is main without the process: it returns instead of exiting.
func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("protogen", flag.ContinueOnError)
	protoDir := flags.String("proto", "proto", "folder that holds postrider/**/*.proto; the code goes to its gen folder")
	pluginDir := flags.String("plugins", "bin", "folder that holds the protoc plugins")
	descriptors := flags.String("descriptors", "", "write a FileDescriptorSet of our own files here and generate no code")
	if err := flags.Parse(args); err != nil {
		return err
	}

	files, err := compile(ctx, *protoDir)
	if err != nil {
		return err
	}
	if *descriptors != "" {
		return writeDescriptors(*descriptors, files)
	}
	return generate(ctx, files, *pluginDir, *protoDir+"/gen")
}
