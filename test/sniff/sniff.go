// Package sniff sees what leaves a network namespace for given ranges, in clear, over interfaces that are not the product's. Only
// tests import it.
package sniff

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// own begins the names of the product's interfaces.
const own = "edgemesh-"

// Frame is one that left.
type Frame struct {
	Link string
	To   net.HardwareAddr // nil over a TUN
	Dst  netip.Addr
}

func (f Frame) String() string { return fmt.Sprintf("to %s at %s over %s", f.Dst, f.To, f.Link) }

// Sniffer collects frames until Close.
type Sniffer struct {
	ranges []netip.Prefix
	pods   func(link string) bool
	file   *os.File
	done   chan struct{}

	mu   sync.Mutex
	seen []Frame
	err  error
}

// Start watches all interfaces, later ones, too, in the network namespace of the calling thread, except for the product's own and those
// that pods says lead to pods.
func Start(ranges []netip.Prefix, pods func(link string) bool) (*Sniffer, error) {
	raw, err := bpf.Assemble(filter(ranges))
	if err != nil {
		return nil, fmt.Errorf("sniff: %w", err)
	}
	program := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		program[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0) // hears nothing yet
	if err != nil {
		return nil, fmt.Errorf("sniff: %w", err)
	}
	s := &Sniffer{ranges: ranges, pods: pods, file: os.NewFile(uintptr(fd), "packets"), done: make(chan struct{})}
	err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
	if err == nil {
		every := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ALL))
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: every})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("sniff: %w", err), s.file.Close())
	}
	go s.run()
	return s, nil
}

const (
	etherHeader = 14
	copied      = 128 // bytes
	// network is SKF_NET_OFF (linux/filter.h): what offsets from the IP header begin with.
	network = 0xfff00000
)

// Offsets in IP headers.
const (
	dst4     = 16
	dst6     = 24
	next6    = 6
	icmpType = 40
)

// filter takes IP packets that leave and whose destination begins as a range does, in its first 32 bits.
func filter(ranges []netip.Prefix) []bpf.Instruction {
	out := []bpf.Instruction{bpf.LoadExtension{Num: bpf.ExtType}, bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.PACKET_OUTGOING, SkipTrue: 1}, bpf.RetConstant{}}
	for _, r := range ranges {
		kind, at := uint32(unix.ETH_P_IP), uint32(dst4)
		if r.Addr().Is6() {
			kind, at = unix.ETH_P_IPV6, dst6
		}
		mask := ^uint32(0) << (32 - min(r.Bits(), 32))
		out = append(out, bpf.LoadExtension{Num: bpf.ExtProto}, bpf.JumpIf{Cond: bpf.JumpEqual, Val: kind, SkipFalse: 4},
			bpf.LoadAbsolute{Off: network + at, Size: 4}, bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: mask},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: binary.BigEndian.Uint32(r.Addr().AsSlice()) & mask, SkipFalse: 1}, bpf.RetConstant{Val: copied})
	}
	return append(out, bpf.RetConstant{})
}

func (s *Sniffer) run() {
	defer close(s.done)
	conn, err := s.file.SyscallConn()
	b := make([]byte, copied)
	for err == nil {
		var n int
		var from unix.Sockaddr
		var failed error
		err = conn.Read(func(fd uintptr) bool {
			n, from, failed = unix.Recvfrom(int(fd), b, 0)
			return !errors.Is(failed, unix.EAGAIN)
		})
		if err == nil && failed != nil && !errors.Is(failed, unix.ENETDOWN) && !errors.Is(failed, unix.EINTR) {
			err = failed
		}
		if link, ok := from.(*unix.SockaddrLinklayer); err == nil && failed == nil && ok {
			s.take(b[:n], link)
		}
	}
	if !errors.Is(err, os.ErrClosed) {
		s.mu.Lock()
		s.err = err
		s.mu.Unlock()
	}
}

// take notes a frame that passed the filter.
func (s *Sniffer) take(b []byte, from *unix.SockaddrLinklayer) {
	var f Frame
	if from.Hatype == unix.ARPHRD_ETHER && len(b) > etherHeader {
		f.To, b = append(net.HardwareAddr(nil), b[:6]...), b[etherHeader:]
	}
	switch {
	case len(b) >= dst4+4 && b[0]>>4 == 4:
		f.Dst, _ = netip.AddrFromSlice(b[dst4 : dst4+4])
	case len(b) >= dst6+16 && b[0]>>4 == 6:
		f.Dst, _ = netip.AddrFromSlice(b[dst6 : dst6+16])
		const solicitation, advertisement = 135, 136 // RFC 4861: names addresses, and carries nothing
		if b[next6] == unix.IPPROTO_ICMPV6 && len(b) > icmpType && (b[icmpType] == solicitation || b[icmpType] == advertisement) {
			return
		}
	}
	if f.Link = s.nameOf(from.Ifindex); f.Link == "lo" || strings.HasPrefix(f.Link, own) || s.pods(f.Link) {
		return
	}
	for _, r := range s.ranges {
		if r.Contains(f.Dst) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.seen = append(s.seen, f)
			return
		}
	}
}

// nameOf is an interface's name in the socket's namespace, which is not that of the thread that reads.
func (s *Sniffer) nameOf(index int) string {
	req, err := unix.NewIfreq("")
	if err == nil {
		req.SetUint32(uint32(index))
		var conn interface{ Control(func(uintptr)) error }
		if conn, err = s.file.SyscallConn(); err == nil {
			_ = conn.Control(func(fd uintptr) { err = unix.IoctlIfreq(int(fd), unix.SIOCGIFNAME, req) })
		}
	}
	if err != nil {
		return fmt.Sprintf("interface %d", index) // it is gone
	}
	return req.Name()
}

// Seen lists the frames that have left so far.
func (s *Sniffer) Seen() ([]Frame, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Frame(nil), s.seen...), s.err
}

// Close ends it.
func (s *Sniffer) Close() error {
	err := s.file.Close()
	<-s.done
	return err
}
