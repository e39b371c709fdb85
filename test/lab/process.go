package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"edgemesh/test/fair"
)

// Process is a program that was started inside a namespace. Both its outputs go
// to one log file.
type Process struct {
	Name string
	Log  string // path of its log

	cmd     *exec.Cmd
	product *fair.Product // of the lab
	done    chan struct{} // closed when it has ended
}

// Start starts a program inside the namespace. Logs of one name are appended to
// one file.
func (n *NS) Start(name string, args ...string) (*Process, error) {
	log := filepath.Join(n.lab.Dir, "log", name+".log")
	if err := os.MkdirAll(filepath.Dir(log), 0o755); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	f, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	defer f.Close()
	p := &Process{Name: name, Log: log, product: n.lab.Product, done: make(chan struct{})}
	p.cmd = n.Command(context.Background(), args...)
	p.cmd.Stdout, p.cmd.Stderr = f, f
	l := n.lab
	if err := l.start(p.cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		_ = l.wait(p.cmd) // the state says how it ended
		close(p.done)
	}()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.processes = append(l.processes, p)
	return p, nil
}

// start starts a command. When it is one of our programs it belongs to the product.
func (l *Lab) start(c *exec.Cmd) error {
	err := c.Start()
	if err == nil && isProduct(c.Args) {
		l.Product.Add(c.Process.Pid)
	}
	return err
}

// wait waits for the end of a command that start has started.
func (l *Lab) wait(c *exec.Cmd) error {
	defer l.Product.Remove(c.Process.Pid)
	return c.Wait()
}

// isProduct says whether a command runs one of our programs: as `ip netns exec`, env and
// taskset do, by becoming it.
func isProduct(args []string) bool {
	return slices.ContainsFunc(args, func(arg string) bool {
		return slices.Contains([]string{"edgemesh-agent", "edgemesh-relay", "edgemesh-cni"}, filepath.Base(arg))
	})
}

// PID returns the program's process ID: `ip netns exec` becomes the program.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Running says whether the program has not ended yet.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// ExitCode returns the code of a program that has ended, -1 otherwise or when a
// signal ended it.
func (p *Process) ExitCode() int {
	if p.Running() {
		return -1
	}
	return p.cmd.ProcessState.ExitCode()
}

// Wait waits for the program's end; the error is the context's.
func (p *Process) Wait(ctx context.Context) error {
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for %s: %w", p.Name, ctx.Err())
	}
}

// Stop sends the program SIGTERM and waits; after 5 s of fair time it is killed, which is
// an error.
func (p *Process) Stop() error {
	p.signalTerm()
	ctx, cancel := p.product.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := p.Wait(ctx); err != nil {
		p.Kill()
		return fmt.Errorf("%s did not end within 5 s of SIGTERM", p.Name)
	}
	return nil
}

// Kill ends the program with SIGKILL and waits for that.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // fails only when it has ended
	<-p.done
}

func (p *Process) signalTerm() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // fails only when it has ended
}

// Tail returns the last lines of the log.
func (p *Process) Tail(lines int) string {
	b, err := os.ReadFile(p.Log)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

func (p *Process) state() string {
	if p.Running() {
		return fmt.Sprintf("running, pid %d", p.PID())
	}
	return p.cmd.ProcessState.String()
}

// Until calls f every interval until it returns nil; when ctx ends first the
// error is ErrTimeout with f's last error. ErrEnded is returned immediately.
func Until(ctx context.Context, interval time.Duration, f func() error) error {
	t := time.NewTicker(interval)
	defer t.Stop()
	for {
		err := f()
		if err == nil || errors.Is(err, ErrEnded) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ErrTimeout, err)
		case <-t.C:
		}
	}
}
