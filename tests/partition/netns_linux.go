package partition

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// namespace is a network namespace without a name. It lives as long as its file is open here or a process runs in it.
type namespace struct{ file *os.File }

// newNamespace makes a namespace in which only loopback is up.
func newNamespace(ctx context.Context) (*namespace, error) {
	made, failed := make(chan *namespace, 1), make(chan error, 1)
	go func() { // sends once; its thread is not unlocked, and so ends with it
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			failed <- fmt.Errorf("new network namespace: %w", err)
			return
		}
		file, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			failed <- fmt.Errorf("new network namespace: %w", err)
			return
		}
		made <- &namespace{file}
	}()
	select {
	case err := <-failed:
		return nil, err
	case n := <-made:
		return n, n.ip(ctx, "link set lo up")
	}
}

// path names the namespace for programs that this process starts.
func (n *namespace) path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.file.Fd()) }

// enter moves the calling thread into the namespace. The thread MUST be locked and MUST end with its goroutine.
func (n *namespace) enter() error {
	if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace: %w", err)
	}
	return nil
}

// do runs f in the namespace. What f opens stays there. nil is the namespace of the process.
func (n *namespace) do(f func() error) error {
	if n == nil {
		return f()
	}
	done := make(chan error, 1)
	go func() { // sends once; its thread is not unlocked, and so ends with it
		runtime.LockOSThread()
		err := n.enter()
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// command runs a program in the namespace, with an input.
func (n *namespace) command(ctx context.Context, input, program string, args ...string) error {
	return n.do(func() error {
		cmd := exec.CommandContext(ctx, program, args...)
		cmd.Stdin = strings.NewReader(input)
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s: %w: %s: %s", program, err, input, out)
		}
		return nil
	})
}

// ip does what each line says.
func (n *namespace) ip(ctx context.Context, lines ...string) error {
	return n.command(ctx, strings.Join(lines, "\n")+"\n", "ip", "-batch", "-")
}

// filter makes the rules of packets that come in and go out; there are no others afterwards.
func (n *namespace) filter(ctx context.Context, in, out []string) error {
	var b strings.Builder
	b.WriteString("flush ruleset\ntable inet faults {\n")
	for hook, rules := range map[string][]string{"input": in, "output": out} {
		fmt.Fprintf(&b, "chain %s { type filter hook %s priority 0;\n%s\n}\n", hook, hook, strings.Join(rules, "\n"))
	}
	b.WriteString("}\n")
	return n.command(ctx, b.String(), "nft", "-f", "-")
}

func (n *namespace) listen(ctx context.Context, addr string) (lis net.Listener, err error) {
	err = n.do(func() error {
		lis, err = new(net.ListenConfig).Listen(ctx, "tcp", addr)
		return err
	})
	return lis, err
}

func (n *namespace) dial(ctx context.Context, addr string) (conn net.Conn, err error) {
	err = n.do(func() error {
		conn, err = new(net.Dialer).DialContext(ctx, "tcp", addr)
		return err
	})
	return conn, err
}

// unable says why this machine cannot run the tests; nil: it can.
func unable(ctx context.Context) error {
	for _, program := range []string{"ip", "nft"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%w (Debian: apt-get install iproute2 nftables)", err)
		}
	}
	n, err := newNamespace(ctx)
	if err != nil {
		return fmt.Errorf("%w (it takes root)", err)
	}
	defer n.file.Close() //nolint:errcheck // it was for trying
	err = n.ip(ctx, "link add br0 type bridge", "link add port1 type veth peer name eth0", "route add blackhole 10.1.1.1/32")
	if err == nil {
		err = n.filter(ctx, []string{"numgen random mod 100 < 30 drop"}, []string{`oifname != "lo" meta l4proto tcp reject with tcp reset`})
	}
	return err
}
