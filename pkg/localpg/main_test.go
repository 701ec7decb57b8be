package localpg_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/localpg"
)

// ownerEnv, when set, makes the test binary an owner of a server that waits to be killed.
const ownerEnv = "LOCALPG_TEST_OWNER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(ownerEnv); dir != "" {
		os.Exit(own(dir))
	}
	goleak.VerifyTestMain(m)
}

func own(dir string) int {
	server, err := localpg.Start(context.Background(), clock.Real{}, localpg.Options{Dir: dir})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(server.DSN("postgres"))
	select {}
}
