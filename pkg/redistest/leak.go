package redistest

import "go.uber.org/goleak"

// IgnoreProbe is for goleak in packages whose tests take Redis away: the driver then keeps a goroutine that dials once a second, and after Close it
// sleeps its second out.
func IgnoreProbe() goleak.Option {
	return goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial")
}
