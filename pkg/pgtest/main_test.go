package pgtest_test

import (
	"testing"

	"postrider.dev/pkg/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }
