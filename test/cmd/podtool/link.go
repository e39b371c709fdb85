package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"edgemesh/test/lab/link"
)

// emulate makes two TAPs and is the link between them until it is ended. It
// prints its counters on SIGUSR1 and at the end.
func emulate(ctx context.Context, args []string) error {
	fs := newFlags("link")
	var c link.Config
	fs.TextVar(&c.Up, "up", link.Direction{}, "from A to B")
	fs.TextVar(&c.Down, "down", link.Direction{}, "from B to A")
	both := fs.String("both", "", "in both directions")
	mtu := fs.Int("mtu", link.DefaultMTU, "of the TAPs, bytes")
	seed := fs.Uint64("seed", 1, "of losses, jitter and reordering")
	socket := fs.String("socket", "", "unix socket to control it")
	names, err := parse(fs, args, 2)
	if err != nil {
		return err
	}
	if *both != "" {
		d, err := link.Parse(*both)
		if err != nil {
			return fmt.Errorf("%w: %w", errUsage, err)
		}
		c = link.Both(d)
	}
	if err := link.RealTime(); err != nil {
		fmt.Fprintln(os.Stderr, "podtool link: continues without:", err)
	}
	e, err := link.New(names[0], names[1], *mtu, c, *seed)
	if err != nil {
		return err
	}
	defer e.Close()
	printStats := func() error {
		s, err := e.Stats()
		return errors.Join(err, report(s))
	}

	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	dump := make(chan os.Signal, 1)
	signal.Notify(dump, syscall.SIGUSR1)
	wg.Go(func() {
		defer signal.Stop(dump)
		for {
			select {
			case <-dump:
				_ = printStats() // nobody reads the error
			case <-ctx.Done():
				return
			}
		}
	})
	var serveErr error
	if *socket != "" {
		l, err := net.Listen("unix", *socket)
		if err != nil {
			return err
		}
		wg.Go(func() {
			defer cancel()
			serveErr = e.Serve(ctx, l)
		})
	}
	err = e.Run(ctx)
	cancel()
	wg.Wait()
	return errors.Join(err, serveErr, printStats())
}
