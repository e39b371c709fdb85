package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"edgemesh/test/initials"
)

// knocked is the outcome of knock.
type knocked struct {
	Opened  int `json:"opened"`  // connections that the kernel there accepted, or first packets sent
	Kept    int `json:"kept"`    // connections that were not closed in the end
	Answers int `json:"answers"` // packets that came back
}

// knock is a stranger's flood: connections that never say whose they are, held for a time, or the first packets of QUIC
// connections. A line says when all of them are open, another one how it ended.
func knock(ctx context.Context, args []string) error {
	fs := newFlags("knock")
	proto := fs.String("proto", "tcp", "tcp or quic")
	count := fs.Int("count", 1, "connections")
	first := fs.String("first", "", "what each TCP connection says")
	from := fs.String("from", "", "the first address to send from; empty: the host's own")
	hosts := fs.Int("hosts", 1, "how many addresses, in turns")
	hold := fs.Duration("hold", 0, "how long to stay")
	args, err := parse(fs, args, 1)
	if err != nil {
		return err
	}
	to, err := netip.ParseAddrPort(args[0])
	if err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	sources := make([]netip.Addr, *hosts)
	if *from != "" {
		at, err := netip.ParseAddr(*from)
		if err != nil {
			return fmt.Errorf("%w: --from: %w", errUsage, err)
		}
		for i := range sources {
			sources[i], at = at, at.Next()
		}
	}
	end := time.Now().Add(*hold)
	var out knocked
	var finish func(time.Time)
	if *proto == "quic" {
		finish, err = packets(ctx, to, sources, *count, &out)
	} else {
		finish, err = idle(ctx, to, sources, *count, *first, &out)
	}
	if err = errors.Join(err, report(out)); err != nil {
		return err
	}
	finish(end)
	return report(out)
}

// idle opens connections that say first and nothing else.
func idle(ctx context.Context, to netip.AddrPort, sources []netip.Addr, n int, first string, out *knocked) (func(time.Time), error) {
	conns := make([]net.Conn, 0, n)
	for i := range n {
		d := net.Dialer{Timeout: 10 * time.Second}
		if from := sources[i%len(sources)]; from.IsValid() {
			d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
		}
		c, err := d.DialContext(ctx, "tcp", to.String())
		if err != nil {
			return nil, fmt.Errorf("connection %d of %d: %w", i+1, n, err)
		}
		_, _ = c.Write([]byte(first)) // it may be closed already
		conns = append(conns, c)
	}
	out.Opened = len(conns)
	return func(end time.Time) {
		var wg sync.WaitGroup
		var mu sync.Mutex
		for _, c := range conns {
			wg.Go(func() {
				_ = c.SetReadDeadline(end)
				b := make([]byte, 64)
				for {
					_, err := c.Read(b)
					if errors.Is(err, os.ErrDeadlineExceeded) {
						mu.Lock()
						out.Kept++
						mu.Unlock()
					}
					if err != nil {
						return
					}
				}
			})
		}
		wg.Wait()
	}, nil
}

// packets sends the first packets of QUIC connections, 10,000 a second.
func packets(ctx context.Context, to netip.AddrPort, sources []netip.Addr, n int, out *knocked) (func(time.Time), error) {
	socks := make([]*net.UDPConn, len(sources))
	for i, from := range sources {
		var at *net.UDPAddr
		if from.IsValid() {
			at = net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
		}
		var err error
		if socks[i], err = net.DialUDP("udp", at, net.UDPAddrFromAddrPort(to)); err != nil {
			return nil, err
		}
	}
	all, err := initials.New(ctx, n)
	if err != nil {
		return nil, err
	}
	for i, p := range all {
		if _, err := socks[i%len(socks)].Write(p); err != nil {
			return nil, err
		}
		if i%50 == 49 {
			time.Sleep(5 * time.Millisecond)
		}
	}
	out.Opened = n
	return func(end time.Time) {
		b := make([]byte, 2048)
		for _, s := range socks {
			_ = s.SetReadDeadline(end)
		}
		time.Sleep(time.Until(end))
		for _, s := range socks {
			_ = s.SetReadDeadline(time.Now().Add(time.Millisecond))
			for {
				if _, err := s.Read(b); err != nil {
					break
				}
				out.Answers++
			}
		}
	}, nil
}
