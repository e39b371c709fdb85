package main

import (
	"context"
	"net"
	"net/netip"
	"time"

	"edgemesh/test/nameserver"
)

// names is a name server that knows every name at the same addresses, and has faults.
func names(ctx context.Context, args []string) error {
	var s nameserver.Server
	fs := newFlags("names")
	fs.BoolVar(&s.A.Silent, "no-a", false, "never answer for IPv4")
	fs.BoolVar(&s.AAAA.Silent, "no-aaaa", false, "never answer for IPv6")
	fs.DurationVar(&s.AAAA.Late, "late-aaaa", time.Duration(0), "answer later for IPv6")
	fs.TextVar(&s.DNS64, "dns64", s.DNS64, "answer for IPv6 with this prefix and the IPv4 address")
	operands, err := parse(fs, args, 2)
	if err != nil {
		return err
	}
	a, err := netip.ParseAddr(operands[1])
	if err != nil {
		return err
	}
	s.Addrs = []netip.Addr{a}
	var lc net.ListenConfig
	c, err := lc.ListenPacket(ctx, "udp", net.JoinHostPort(operands[0], "53"))
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { c.Close() })
	return s.Serve(c)
}
