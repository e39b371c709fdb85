package rawio

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// udp is a socket of a network at an address, and its Conn.
func udp(t *testing.T, network, addr string) (*net.UDPConn, *Conn, netip.AddrPort) {
	t.Helper()
	c, err := net.ListenUDP(network, net.UDPAddrFromAddrPort(netip.MustParseAddrPort(addr)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	io, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return c, io, c.LocalAddr().(*net.UDPAddr).AddrPort()
}

// receiving are n messages with room for 2000 bytes each.
func receiving(n int) (ms []Message, bufs [][]byte) {
	ms, bufs = make([]Message, n), make([][]byte, n)
	iovs := make([]unix.Iovec, n)
	for i := range ms {
		bufs[i] = make([]byte, 2000)
		iovs[i].Base = &bufs[i][0]
		iovs[i].SetLen(len(bufs[i]))
		ms[i].Header.Iov = &iovs[i]
		ms[i].Header.SetIovlen(1)
	}
	return ms, bufs
}

func TestMessages(t *testing.T) {
	for _, c := range []struct {
		name, network, from, to string
		v6                      bool
	}{
		{"IPv4", "udp4", "127.0.0.1:0", "127.0.0.1:0", false},
		{"IPv6", "udp6", "[::1]:0", "[::1]:0", true},
		{"to IPv4 by a socket of both", "udp", "[::]:0", "127.0.0.1:0", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, from, _ := udp(t, c.network, c.from)
			_, to, addr := udp(t, "udp", c.to)
			go func() { // it waits for the first
				time.Sleep(10 * time.Millisecond) // sleep: it waits for the first
				for _, s := range []string{"one", strings.Repeat("two", 400)} {
					if n, err := from.Send([]byte(s), nil, addr, c.v6); n != len(s) || err != nil {
						t.Errorf("sent %d bytes, %v", n, err)
					}
				}
			}()
			var got []string
			for len(got) < 2 {
				ms, bufs := receiving(4)
				n, err := to.Receive(ms)
				if n == 0 || err != nil {
					t.Fatalf("%d messages, %v", n, err)
				}
				for i := range n {
					got = append(got, string(bufs[i][:ms[i].Len]))
				}
			}
			if len(got) != 2 || got[0] != "one" || len(got[1]) != 1200 {
				t.Errorf("got %d messages: %.20q", len(got), got)
			}
		})
	}
}

// TestMessageErrors wants what package net says, which quic-go reads.
func TestMessageErrors(t *testing.T) {
	conn, from, _ := udp(t, "udp4", "127.0.0.1:0")
	_, _, to := udp(t, "udp4", "127.0.0.1:0")
	_, err := from.Send(make([]byte, 70_000), nil, to, false)
	var call *os.SyscallError
	if !errors.Is(err, unix.EMSGSIZE) || !errors.As(err, &call) || call.Syscall != "sendmsg" {
		t.Errorf("too long: %v", err)
	}
	if _, err := from.Send([]byte("x"), nil, to, false); err != nil {
		t.Errorf("after an error: %v", err)
	}
	oob := make([]byte, unix.CmsgSpace(2)) // trains of no size
	h := (*unix.Cmsghdr)(unsafe.Pointer(&oob[0]))
	h.Level, h.Type = unix.SOL_UDP, unix.UDP_SEGMENT
	h.SetLen(unix.CmsgLen(1))
	if _, err := from.Send([]byte("x"), oob, to, false); !errors.Is(err, unix.EINVAL) {
		t.Errorf("a control message that is none: %v", err)
	}
	conn.Close()
	ms, _ := receiving(1)
	if _, err := from.Receive(ms); !errors.Is(err, net.ErrClosed) && !errors.Is(err, os.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
	if _, err := from.Send([]byte("x"), nil, to, false); err == nil {
		t.Error("a closed socket sends")
	}
}
