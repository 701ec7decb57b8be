package fence_test

import (
	"fmt"
	"time"

	"postrider.dev/pkg/fence"
)

func ExampleWindow() {
	w := fence.Window{TTL: 3 * time.Second, Margin: 500 * time.Millisecond}
	start := time.Unix(100, 0) // when the renewal was sent; the answer may come much later

	fmt.Println(w.TrustedUntil(start).Sub(start))
	fmt.Println(w.Trusted(start.Add(2*time.Second), start), w.Trusted(start.Add(2500*time.Millisecond), start))
	// Output:
	// 2.5s
	// true false
}
