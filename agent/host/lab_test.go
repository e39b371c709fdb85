package host

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/nstest"
	"edgemesh/test/fair"
	"edgemesh/tunnel/inet"
)

// deadline bounds every wait for something that must come.
const deadline = 20 * time.Second

// lab is a node with two pods, an uplink to a LAN with one other host, and a
// TUN whose far side is the test.
type lab struct {
	t                     *testing.T
	node, lan, podA, podB nstest.Namespace
	tun                   *os.File
	host                  *Host
}

const (
	nodeLAN4, lanHost4   = "192.168.1.2", "192.168.1.50"
	nodeLAN6, lanHost6   = "2001:db8:1::2", "2001:db8:1::50"
	podA4, podB4, far4   = "10.244.1.5", "10.244.1.6", "10.244.2.5"
	podA6, podB6, far6   = "fd00:1::5", "fd00:1::6", "fd00:2::5"
	gateway4, gateway6   = "10.244.1.1", "fd00:1::1"
	nodePort, serverPort = 30080, 9376
)

// newLab makes the namespaces; prepare runs in the node's before Set.
func newLab(t *testing.T, prepare string) *lab {
	t.Helper()
	return newLabOf(t, prepare, dual())
}

// newLabOf is newLab with another plan.
func newLabOf(t *testing.T, prepare string, w mesh.Host) *lab {
	t.Helper()
	l := newBareLab(t, prepare)
	mustSet(t, l.host, w)
	l.podOn(BridgeName, l.podA, "vethA", podA4, podA6)
	l.podOn(BridgeName, l.podB, "vethB", podB4, podB6)
	return l
}

// newBareLab is newLab before Set, without pods.
func newBareLab(t *testing.T, prepare string) *lab {
	t.Helper()
	l := &lab{t: t, node: enter(t)}
	l.lan, l.podA, l.podB = l.namespace(), l.namespace(), l.namespace()
	l.wire("up0", l.lan, "lan0")
	run(t, `
ip addr add `+nodeLAN4+`/24 dev up0
ip addr add `+nodeLAN6+`/64 dev up0 nodad
ip route add default via `+lanHost4+`
ip -6 route add default via `+lanHost6)
	l.in(l.lan, func() {
		run(t, `
ip addr add `+lanHost4+`/24 dev lan0
ip addr add `+lanHost6+`/64 dev lan0 nodad
ip route add 10.244.0.0/16 via `+nodeLAN4+`
ip -6 route add fd00::/16 via `+nodeLAN6+`
iptables-nft -t raw -A PREROUTING -d 10.244.0.0/16
ip6tables-nft -t raw -A PREROUTING -d fd00::/16`)
	})
	run(t, prepare)
	l.tun = openTUN(t)
	l.host = newHost(t)
	return l
}

// namespace makes a namespace with lo up and returns to the node's.
func (l *lab) namespace() nstest.Namespace {
	l.t.Helper()
	ns, err := nstest.New()
	if err != nil {
		l.t.Fatal(err)
	}
	nstest.Prepare(l.t)
	if err := l.node.Set(); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { ns.Close() })
	return ns
}

// in runs f in another namespace and comes back. f must not start goroutines
// that make sockets.
func (l *lab) in(ns nstest.Namespace, f func()) {
	l.t.Helper()
	if err := ns.Set(); err != nil {
		l.t.Fatal(err)
	}
	defer func() {
		if err := l.node.Set(); err != nil {
			l.t.Error(err)
			runtime.Goexit()
		}
	}()
	f()
}

// wire joins the node to ns by a veth pair, both ends up.
func (l *lab) wire(here string, ns nstest.Namespace, there string) {
	l.t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = here
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: there, PeerNamespace: netlink.NsFd(int(ns))}); err != nil {
		l.t.Fatal(err)
	}
	run(l.t, "ip link set "+here+" up")
	l.in(ns, func() { run(l.t, "ip link set "+there+" up") })
}

// podOn plugs a pod into a bridge.
func (l *lab) podOn(bridge string, ns nstest.Namespace, name, a4, a6 string) {
	l.t.Helper()
	l.wire(name, ns, "eth0")
	run(l.t, "ip link set "+name+" master "+bridge)
	l.in(ns, func() {
		run(l.t, `
ip addr add `+a4+`/24 dev eth0
ip addr add `+a6+`/64 dev eth0 nodad
ip route add default via `+gateway4+`
ip -6 route add default via `+gateway6)
	})
}

// openTUN makes the TUN and holds it, as the agent does.
func openTUN(t *testing.T) *os.File {
	t.Helper()
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	req, err := unix.NewIfreq(TUNName)
	if err != nil {
		t.Fatal(err)
	}
	req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "tun")
	t.Cleanup(func() { f.Close() })
	return f
}

// listen opens a UDP socket in ns.
func (l *lab) listen(ns nstest.Namespace, addr string, port int) *net.UDPConn {
	l.t.Helper()
	network := "udp4" // a socket of both families receives no IPv4 multicast
	if strings.Contains(addr, ":") {
		network = "udp6"
	}
	var c *net.UDPConn
	l.in(ns, func() {
		var err error
		c, err = net.ListenUDP(network, net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(addr), uint16(port))))
		if err != nil {
			l.t.Fatal(err)
		}
	})
	l.t.Cleanup(func() { c.Close() })
	return c
}

// send sends a datagram; a failing send is the caller's to judge.
func send(c *net.UDPConn, payload, addr string, port int) error {
	_, err := c.WriteToUDPAddrPort([]byte(payload), netip.AddrPortFrom(netip.MustParseAddr(addr), uint16(port)))
	return err
}

// receive waits for a datagram with payload and returns who sent it.
func (l *lab) receive(c *net.UDPConn, payload string) netip.AddrPort {
	l.t.Helper()
	b := make([]byte, 2048)
	c.SetReadDeadline(time.Now().Add(deadline))
	for {
		n, from, err := c.ReadFromUDPAddrPort(b)
		if err != nil {
			l.t.Fatalf("%q did not arrive at %s: %v\n%s", payload, c.LocalAddr(), err, l.state())
		}
		if string(b[:n]) == payload {
			return netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
		}
	}
}

// nothing fails if a datagram is waiting. Call it when it would have come.
func (l *lab) nothing(c *net.UDPConn, what string) {
	l.t.Helper()
	b := make([]byte, 2048)
	raw, err := c.SyscallConn()
	if err != nil {
		l.t.Fatal(err)
	}
	raw.Control(func(fd uintptr) {
		if n, _, err := unix.Recvfrom(int(fd), b, unix.MSG_DONTWAIT); err == nil {
			l.t.Errorf("%s: %q arrived at %s", what, b[:n], c.LocalAddr())
		}
	})
}

// fromTUN waits for a UDP packet with payload from the TUN and returns its
// addresses.
func (l *lab) fromTUN(payload string) (src, dst netip.AddrPort) {
	l.t.Helper()
	b := make([]byte, 2048)
	l.tun.SetReadDeadline(time.Now().Add(deadline))
	for {
		n, err := l.tun.Read(b)
		if err != nil {
			l.t.Fatalf("%q did not reach the TUN: %v\n%s", payload, err, l.state())
		}
		if src, dst, p, ok := parseUDP(b[:n]); ok && p == payload {
			return src, dst
		}
	}
}

// toTUN lets a packet come out of the tunnel.
func (l *lab) toTUN(src, dst, payload string) {
	l.t.Helper()
	if _, err := l.tun.Write(udpPacket(netip.MustParseAddrPort(src), netip.MustParseAddrPort(dst), payload)); err != nil {
		l.t.Fatal(err)
	}
}

// dropped sends until a chain of ours has dropped something: the packet did arrive
// there, and went no further. save is the program that lists the chain.
func (l *lab) dropped(save, chain string, send func()) {
	l.t.Helper()
	l.droppedIn(chain, send, func(line string) bool {
		return strings.Contains(line, "-A "+chain+" ") && strings.HasSuffix(line, "-j DROP")
	}, save+" -c")
}

// droppedByGuard is dropped for a chain of the guard's.
func (l *lab) droppedByGuard(chain string, send func()) {
	l.t.Helper()
	l.droppedIn("the guard's "+chain, send, func(line string) bool { return strings.Contains(line, "drop") },
		"nft list chain inet edgemesh "+chain)
}

// droppedIn sends until what list prints of the rules that drop, with their counters, is
// no longer the same.
func (l *lab) droppedIn(chain string, send func(), drops func(line string) bool, list string) {
	l.t.Helper()
	now := func() (out string) {
		for line := range strings.Lines(run(l.t, list)) {
			if drops(strings.TrimSpace(line)) {
				out += line
			}
		}
		return out
	}
	before := now()
	l.counted(send, chain, func() bool { return now() != before })
}

// counted sends until a chain has counted a packet.
func (l *lab) counted(send func(), chain string, is func() bool) {
	l.t.Helper()
	fair.Eventually(l.t, deadline, "a packet is dropped by "+chain, func() error {
		if send(); !is() {
			return errors.New(l.state())
		}
		return nil
	})
}

// state is what one wants to see after a failure.
func (l *lab) state() string {
	return run(l.t, "ip -br addr\nip rule\nip route show table 5210\niptables-nft-save -c\niptables-legacy-save -c\nnft list ruleset\nip -s link show "+TUNName)
}

func udpPacket(src, dst netip.AddrPort, payload string) []byte {
	udp := make([]byte, 8+len(payload))
	binary.BigEndian.PutUint16(udp[0:], src.Port())
	binary.BigEndian.PutUint16(udp[2:], dst.Port())
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	copy(udp[8:], payload)
	pseudo := append(src.Addr().AsSlice(), dst.Addr().AsSlice()...)
	pseudo = append(pseudo, 0, unix.IPPROTO_UDP, byte(len(udp)>>8), byte(len(udp)))
	binary.BigEndian.PutUint16(udp[6:], inet.Checksum(0, append(pseudo, udp...)))
	if src.Addr().Is4() {
		h := make([]byte, 20)
		h[0], h[8], h[9] = 0x45, 64, unix.IPPROTO_UDP
		binary.BigEndian.PutUint16(h[2:], uint16(20+len(udp)))
		copy(h[12:], src.Addr().AsSlice())
		copy(h[16:], dst.Addr().AsSlice())
		binary.BigEndian.PutUint16(h[10:], inet.Checksum(0, h))
		return append(h, udp...)
	}
	h := make([]byte, 40)
	h[0], h[6], h[7] = 0x60, unix.IPPROTO_UDP, 64
	binary.BigEndian.PutUint16(h[4:], uint16(len(udp)))
	copy(h[8:], src.Addr().AsSlice())
	copy(h[24:], dst.Addr().AsSlice())
	return append(h, udp...)
}

func parseUDP(b []byte) (src, dst netip.AddrPort, payload string, ok bool) {
	var s, d netip.Addr
	switch {
	case len(b) >= 28 && b[0]>>4 == 4 && b[9] == unix.IPPROTO_UDP:
		s, _ = netip.AddrFromSlice(b[12:16])
		d, _ = netip.AddrFromSlice(b[16:20])
		b = b[int(b[0]&15)*4:]
	case len(b) >= 48 && b[0]>>4 == 6 && b[6] == unix.IPPROTO_UDP:
		s, _ = netip.AddrFromSlice(b[8:24])
		d, _ = netip.AddrFromSlice(b[24:40])
		b = b[40:]
	default:
		return
	}
	return netip.AddrPortFrom(s, binary.BigEndian.Uint16(b)), netip.AddrPortFrom(d, binary.BigEndian.Uint16(b[2:])), string(b[8:]), true
}

// lanSaw counts the packets for the cluster's ranges that reached the LAN.
func (l *lab) lanSaw() string {
	var out string
	l.in(l.lan, func() {
		for _, save := range []string{"iptables-nft-save -c", "ip6tables-nft-save -c"} {
			for line := range strings.Lines(run(l.t, save)) {
				if strings.Contains(line, "-A PREROUTING") && !strings.HasPrefix(line, "[0:0]") {
					out += line
				}
			}
		}
	})
	return out
}

// mss dials a TCP connection in from and returns the segment size the far end
// in to may send.
func (l *lab) mss(from, to nstest.Namespace, addr string) int {
	l.t.Helper()
	var ln net.Listener
	l.in(to, func() {
		var err error
		if ln, err = net.Listen("tcp", net.JoinHostPort(addr, fmt.Sprint(serverPort))); err != nil {
			l.t.Fatal(err)
		}
	})
	defer ln.Close()
	var c net.Conn
	l.in(from, func() {
		var err error
		if c, err = net.DialTimeout("tcp", ln.Addr().String(), deadline); err != nil {
			l.t.Fatal(err)
		}
	})
	defer c.Close()
	s, err := ln.Accept()
	if err != nil {
		l.t.Fatal(err)
	}
	defer s.Close()
	raw, err := s.(syscall.Conn).SyscallConn()
	if err != nil {
		l.t.Fatal(err)
	}
	var mss int
	raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			mss = int(info.Snd_mss)
		}
	})
	return mss
}

// setMark marks a socket as the agent marks its own.
func setMark(t *testing.T, c *net.UDPConn) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, Mark) })
	if err != nil {
		t.Fatal(err)
	}
}

// holdUDP keeps a UDP port of the thread's namespace in use, until release or the test's end.
func holdUDP(t *testing.T, port int, v6 bool) (release func()) {
	t.Helper()
	domain := unix.AF_INET
	var at unix.Sockaddr = &unix.SockaddrInet4{Port: port}
	if v6 {
		domain, at = unix.AF_INET6, &unix.SockaddrInet6{Port: port}
	}
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err == nil && v6 {
		err = unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_V6ONLY, 1)
	}
	if err == nil {
		err = unix.Bind(fd, at)
	}
	if err != nil {
		t.Fatal(err)
	}
	release = sync.OnceFunc(func() { unix.Close(fd) })
	t.Cleanup(release)
	return release
}
