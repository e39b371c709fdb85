package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// commandTime is how much fair time a command inside a namespace may take when its
// caller gives no deadline.
const commandTime = 20 * time.Second

// NS is a network namespace of the lab.
type NS struct {
	Name string // within the lab
	Full string // as `ip netns` lists it

	lab *Lab
	env []string // of everything run inside
}

// newNS makes a namespace with lo up.
func (l *Lab) newNS(name string) (*NS, error) {
	n := &NS{Name: name, Full: l.Tag + "-" + name, lab: l}
	if out, err := exec.Command("ip", "netns", "add", n.Full).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("add namespace %s: %w: %s", name, err, out)
	}
	return n, n.Script("ip link set lo up")
}

// Command returns the command inside the namespace, not started.
func (n *NS) Command(ctx context.Context, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", n.Full}, args...)...)
	c.Env = append(c.Environ(), n.env...)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a Ctrl-C is for the lab's process only
	c.WaitDelay = time.Second
	return c
}

// Run runs a program inside the namespace and returns what it wrote to standard
// output. A code other than 0 is an *ExitError.
func (n *NS) Run(ctx context.Context, args ...string) (string, error) {
	stdout, _, err := n.run(ctx, "", args...)
	return stdout, err
}

func (n *NS) run(ctx context.Context, stdin string, args ...string) (stdout, stderr string, err error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = n.lab.Product.WithTimeout(ctx, commandTime)
		defer cancel()
	}
	var out, errOut bytes.Buffer
	c := n.Command(ctx, args...)
	c.Stdin = strings.NewReader(stdin)
	c.Stdout, c.Stderr = &out, &errOut
	if err = n.lab.start(c); err == nil {
		err = n.lab.wait(c)
	}
	var exit *exec.ExitError
	switch {
	case err == nil:
	case ctx.Err() != nil:
		err = fmt.Errorf("%s: %s: %w: %s", n.Name, strings.Join(args, " "), ErrTimeout, errOut.String())
	case errors.As(err, &exit):
		err = fmt.Errorf("%s: %w", n.Name,
			&ExitError{Args: args, Code: exit.ExitCode(), Stdout: out.String(), Stderr: errOut.String()})
	default:
		err = fmt.Errorf("%s: %s: %w", n.Name, strings.Join(args, " "), err)
	}
	return out.String(), errOut.String(), err
}

// Script runs a shell script inside the namespace; it ends at the first command
// that fails.
func (n *NS) Script(lines ...string) error {
	_, err := n.Run(context.Background(), "sh", "-ec", strings.Join(lines, "\n"))
	return err
}

// Ping sends one echo request and waits for its answer for at most wait, which is
// rounded up to whole seconds. More arguments are given to ping.
func (n *NS) Ping(ctx context.Context, addr string, wait time.Duration, args ...string) error {
	secs := fmt.Sprint(int((wait + time.Second - 1) / time.Second))
	_, err := n.Run(ctx, append(append([]string{"ping", "-n", "-c", "1", "-W", secs}, args...), addr)...)
	return err
}
