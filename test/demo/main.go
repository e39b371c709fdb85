// Command demo shows the pod network at work on one machine: two sites behind
// NATs with the same LAN, a cloud node and a relay in network namespaces, the
// real binaries, and pods that curl each other. `make demo` runs it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"edgemesh/test/lab"
)

const (
	exitFailed      = 1
	exitInterrupted = 130
	// timeLimit is what the whole demo may take.
	timeLimit = 60 * time.Second
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(execute(ctx, os.Stdout, os.Getenv("KEEP") == "1"))
}

// execute runs the demo and removes everything, or keeps it when it went well
// and keep is set.
func execute(ctx context.Context, out io.Writer, keep bool) int {
	l, err := lab.New(lab.Options{})
	if errors.Is(err, lab.ErrNotRoot) {
		fmt.Fprintln(out, "make demo needs root: it makes network namespaces (removed at the end). Try: sudo make demo")
		return exitFailed
	}
	if err != nil {
		fmt.Fprintln(out, "demo:", err)
		return exitFailed
	}
	s := &show{out: out, start: time.Now()}
	ctx, cancel := context.WithTimeout(ctx, timeLimit)
	defer cancel()
	d := demo{lab: l, show: s}
	err = d.run(ctx)
	if err == nil && keep {
		if err = l.Keep(); err == nil {
			d.howToPlay()
			return 0
		}
	}
	logs := ""
	if err != nil && !errors.Is(ctx.Err(), context.Canceled) {
		logs = l.Logs(25)
	}
	if cerr := l.Close(); cerr != nil {
		err = errors.Join(err, fmt.Errorf("clean up: %w", cerr))
	}
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		fmt.Fprintln(out, "\ninterrupted; everything has been removed")
		return exitInterrupted
	case err != nil:
		fmt.Fprintf(out, "\n%s\n✗ demo failed after %.1f s: %v\n", logs, time.Since(s.start).Seconds(), err)
		return exitFailed
	}
	s.title("Done in %.0f s; everything has been removed", time.Since(s.start).Seconds())
	fmt.Fprintln(out, "  KEEP=1 make demo leaves it running to play with.")
	return 0
}
