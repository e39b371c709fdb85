package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"edgemesh/test/lab"
)

// labs lists and removes labs; "watch" is what every lab starts to be removed
// when its process dies.
func labs(_ context.Context, args []string) error {
	if len(args) == 0 {
		args = []string{"list"}
	}
	switch {
	case args[0] == "list" && len(args) == 1:
		all, err := lab.Leftovers()
		if err != nil {
			return err
		}
		for _, l := range all {
			state := "left over"
			if l.Kept {
				state = "kept"
			} else if l.Alive {
				state = "running"
			}
			fmt.Fprintf(os.Stdout, "%s  %-9s  %s\n", l.Tag, state, l.Dir)
		}
		return nil
	case args[0] == "reap" && len(args) <= 2:
		tag := ""
		if len(args) == 2 {
			tag = args[1]
		}
		gone, err := lab.Reap(tag)
		for _, t := range gone {
			fmt.Fprintln(os.Stdout, "removed", t)
		}
		if err == nil && tag != "" && len(gone) == 0 {
			err = fmt.Errorf("no lab %q on this machine, see `podtool lab list`", tag)
		}
		return err
	case args[0] == "watch" && len(args) == 2:
		signal.Ignore(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
		return lab.Watch(args[1], os.Stdin)
	}
	return errors.Join(errUsage)
}
