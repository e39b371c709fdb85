package main

import (
	"context"
	"net"
	"slices"
	"time"
)

// lookup queries the resolver of /etc/resolv.conf for the addresses of a name.
func lookup(ctx context.Context, args []string) error {
	fs := newFlags("lookup")
	timeout := fs.Duration("timeout", 5*time.Second, "for the answer")
	name, err := parse(fs, args, 1)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	addrs, err := net.DefaultResolver.LookupHost(ctx, name[0])
	if err != nil {
		return err
	}
	slices.Sort(addrs)
	return report(addrs)
}
