// Package capture reads what pods of this node and of others send each other, with packet sockets: nothing is in the packets'
// way, and nothing costs anything while no capture runs.
//
//	capture.go  sockets, one per interface
//	links.go    which interfaces
//	match.go    whose a packet is
//	drops.go    which NetworkPolicy drops it
//	pcapng.go   the file
package capture

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// snap bounds a packet: the TUN carries super-segments of 64 KiB.
	snap = 1 << 16
	// look is how often a socket without packets sees whether the capture is over.
	look = 200 * time.Millisecond
	// buffer is that of a socket, in bytes.
	buffer = 4 << 20
)

// Link is an interface.
type Link struct {
	Index int
	Name  string
}

// Run calls each, not concurrently, with the packets of the interfaces, which it may keep, until ctx ends or each returns an
// error. It returns how many packets the kernel has dropped because they were not read in time.
func Run(ctx context.Context, links []Link, each func(Packet) error) (dropped int, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var fds []int
	defer func() {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	}()
	for _, l := range links {
		fd, err := open(l)
		if err != nil {
			return 0, err
		}
		fds = append(fds, fd)
	}
	var mu sync.Mutex // each, and dropped
	var wg sync.WaitGroup
	for i, l := range links {
		wg.Go(func() {
			err := read(ctx, fds[i], l.Name, func(p Packet) error {
				mu.Lock()
				defer mu.Unlock()
				if ctx.Err() != nil {
					return nil
				}
				return each(p)
			})
			if err != nil {
				cancel(err)
			}
			if st, serr := unix.GetsockoptTpacketStats(fds[i], unix.SOL_PACKET, unix.PACKET_STATISTICS); serr == nil {
				mu.Lock()
				dropped += int(st.Drops)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) && !errors.Is(cause, context.DeadlineExceeded) {
		return dropped, cause
	}
	return dropped, nil
}

// open binds a packet socket to an interface. The kernel takes off what is before the IP header.
func open(l Link) (fd int, err error) {
	const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8 // network byte order
	fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if errors.Is(err, unix.EPERM) {
		return 0, fmt.Errorf("open a packet socket: %w (run as root, or with CAP_NET_RAW)", err)
	}
	if err != nil {
		return 0, fmt.Errorf("open a packet socket: %w", err)
	}
	wait := unix.NsecToTimeval(look.Nanoseconds())
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, buffer) // less is lossier, and counted
	err = errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: l.Index}))
	if err != nil {
		return 0, errors.Join(fmt.Errorf("capture on %s: %w", l.Name, err), unix.Close(fd))
	}
	return fd, nil
}

func read(ctx context.Context, fd int, link string, each func(Packet) error) error {
	buf := make([]byte, snap)
	for ctx.Err() == nil {
		n, from, err := unix.Recvfrom(fd, buf, unix.MSG_TRUNC)
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ENETDOWN):
			time.Sleep(look) // the interface is down; it may come back
			continue
		case err != nil:
			return fmt.Errorf("capture on %s: %w", link, err)
		}
		p := Packet{At: time.Now(), Link: link, Data: append([]byte(nil), buf[:min(n, len(buf))]...), Size: n}
		if l, ok := from.(*unix.SockaddrLinklayer); ok {
			p.Out = l.Pkttype == unix.PACKET_OUTGOING
		}
		if err := each(p); err != nil {
			return err
		}
	}
	return nil
}
