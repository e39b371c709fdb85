package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/test/fair"
	"edgemesh/test/initials"
)

// A stranger's flood: many connections that never say whose they are.
const (
	flood     = 5000
	inTime    = 3 * time.Second // within it a member is connected
	onlySome  = 100             // so many connections a stranger may have: the control
	manyHosts = 200
)

// attacker is the address of the ith attacker.
func attacker(i int) net.IP { return net.IPv4(127, 9, byte(i/250), byte(1+i%250)) }

// idle opens n TCP connections to the relay, from so many hosts in turns, and sends nothing. The
// count is how many the relay keeps.
func idle(t *testing.T, v *server, n, hosts int) (count func() int) {
	t.Helper()
	return begin("")(t, v, n, hosts)
}

// begin is idle after the first bytes of something.
func begin(first string) func(t *testing.T, v *server, n, hosts int) (count func() int) {
	return func(t *testing.T, v *server, n, hosts int) (count func() int) {
		t.Helper()
		conns := open(t, v, n, hosts)
		for _, c := range conns {
			_, _ = c.Write([]byte(first)) // the relay may have closed it
		}
		return func() int { return kept(conns) }
	}
}

// open opens n TCP connections to the relay, from so many hosts in turns.
func open(t *testing.T, v *server, n, hosts int) []net.Conn {
	t.Helper()
	conns := make([]net.Conn, 0, n)
	t.Cleanup(func() {
		for _, c := range conns {
			c.Close()
		}
	})
	for i := range n {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: attacker(i % hosts)}, Timeout: deadline}
		c, err := d.Dial("tcp", v.addr(t, "tcp"))
		if err != nil {
			t.Fatalf("connection %d of %d: %v", i, n, err)
		}
		conns = append(conns, c)
	}
	return conns
}

// kept is how many of conns the other end has not closed.
func kept(conns []net.Conn) (n int) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	until := time.Now().Add(time.Second)
	for _, c := range conns {
		wg.Go(func() {
			_ = c.SetReadDeadline(until)
			b := make([]byte, 64)
			for {
				_, err := c.Read(b)
				if errors.Is(err, os.ErrDeadlineExceeded) {
					mu.Lock()
					defer mu.Unlock()
					n++
				}
				if err != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	return n
}

// begun sends the first packets of n QUIC connections to the relay, from so many hosts in turns, as who forges
// his address could. The count is how many packets come back.
func begun(t *testing.T, v *server, n, hosts int) (count func() int) {
	t.Helper()
	to, err := net.ResolveUDPAddr("udp4", v.addr(t, "quic-v1"))
	if err != nil {
		t.Fatal(err)
	}
	socks := make([]*net.UDPConn, hosts)
	for i := range socks {
		if socks[i], err = net.DialUDP("udp4", &net.UDPAddr{IP: attacker(i)}, to); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { socks[i].Close() })
	}
	all, err := initials.New(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	for i, b := range all {
		if _, err := socks[i%hosts].Write(b); err != nil {
			t.Fatal(err)
		}
		if i%50 == 49 {
			time.Sleep(5 * time.Millisecond) // sleep: 10,000 a second, which the relay's socket can hold
		}
	}
	return func() int { return answers(socks) }
}

// answers is how many packets have arrived.
func answers(socks []*net.UDPConn) (n int) {
	b := make([]byte, 2048)
	for _, s := range socks {
		_ = s.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		for {
			if _, err := s.Read(b); err != nil {
				break
			}
			n++
		}
	}
	return n
}

// addr is where v listens by that transport.
func (v *server) addr(t *testing.T, transport string) string {
	t.Helper()
	proto := map[string]int{"tcp": ma.P_TCP, "quic-v1": ma.P_UDP}[transport]
	port, err := v.info(transport).Addrs[0].ValueForProtocol(proto)
	if err != nil {
		t.Fatal(err)
	}
	return "127.0.0.1:" + port
}

// sharedConfig has TCP and WebSocket on one port.
func sharedConfig(t *testing.T) config {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	at := fmt.Sprintf("/ip4/127.0.0.1/tcp/%d", l.Addr().(*net.TCPAddr).Port)
	c := testConfig()
	c.listen = multiaddrs(at, at+"/ws")
	return c
}

// on are the relay's addresses of one transport on a shared port.
func (v *server) on(transport string) peer.AddrInfo {
	info := v.info("tcp")
	info.Addrs = slices.DeleteFunc(info.Addrs, func(a ma.Multiaddr) bool { return (len(a) == 3) != (transport == "ws") })
	return info
}

// Members get in by TCP and by WebSocket where both share a port, while strangers keep silent there, or say no more than
// how one of them begins.
func TestFloodsOfASharedPort(t *testing.T) {
	for name, first := range map[string]string{
		"silence": "", "a request begins": "GET /", "a long request": "GET / HTTP/1.1\r\nX: " + strings.Repeat("x", 16<<10),
		"a handshake begins": "\x13/multi",
	} {
		for _, hosts := range []int{1, manyHosts} {
			t.Run(fmt.Sprintf("%s from %d hosts", name, hosts), func(t *testing.T) {
				a, b := newNode(t), newNode(t)
				v := newTestServer(t, sharedConfig(t), state(a, b))
				before := heldMemory(t)
				count := begin(first)(t, v, flood, hosts)
				for transport, member := range map[string]node{"tcp": a, "ws": b} {
					ctx, cancel := fair.WithTimeout(t.Context(), inTime)
					start := time.Now()
					if err := member.Connect(ctx, v.on(transport)); err != nil {
						t.Errorf("a member by %s: %v", transport, err)
					}
					t.Logf("a member is connected by %s after %v", transport, time.Since(start))
					cancel()
				}
				// Connections that were just refused, at both ends, are still among it when one looks first.
				fair.Eventually(t, inTime, "the flood takes at most 60 MiB", func() error {
					if grown := heldMemory(t) - before; grown > 60<<20 {
						return fmt.Errorf("%d MiB", grown>>20)
					}
					return nil
				})
				if got := count(); got == flood {
					t.Errorf("all %d connections are kept", got)
				}
			})
		}
	}
}

// heldMemory is how much of the heap and of stacks is in use, in bytes, the test's own part among it.
func heldMemory(t *testing.T) int64 {
	t.Helper()
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}

// The control: both transports of a shared port are heard, whatever their first segments bring, and a slow one is too.
func TestBothTransportsOfAPort(t *testing.T) {
	a, b := newNode(t), newNode(t)
	v := newTestServer(t, sharedConfig(t), state(a, b))
	if got := idle(t, v, onlySome, 1)(); got != onlySome {
		t.Errorf("%d of %d idle connections are kept", got, onlySome)
	}
	for transport, member := range map[string]node{"tcp": a, "ws": b} {
		if err := member.Connect(member.ctx(), v.on(transport)); err != nil {
			t.Errorf("%s: %v", transport, err)
		}
	}
	c := open(t, v, 1, 1)[0]
	for _, part := range []string{"G", "ET / HT", "TP/1.1\r\nHost: relay\r\n\r\n"} {
		if _, err := c.Write([]byte(part)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond) // sleep: each part is a segment of its own
	}
	reply, err := io.ReadAll(c) // the relay closes it: there is nothing else to ask
	if !strings.HasPrefix(string(reply), "HTTP/1.1 404 ") || err != nil {
		t.Errorf("a browser gets %q, %v", reply, err)
	}
}

// Members get in by both transports while strangers hold all the handshakes that they get.
func TestFloodsShutNobodyOut(t *testing.T) {
	for name, attack := range map[string]func(t *testing.T, v *server, n, hosts int) func() int{"TCP": idle, "QUIC": begun} {
		for _, hosts := range []int{1, manyHosts} {
			t.Run(fmt.Sprintf("%s from %d hosts", name, hosts), func(t *testing.T) {
				a, b := newNode(t), newNode(t)
				v := newTestServer(t, testConfig(), state(a, b))
				count := attack(t, v, flood, hosts)
				for transport, member := range map[string]node{"tcp": a, "quic-v1": b} {
					ctx, cancel := fair.WithTimeout(t.Context(), inTime)
					start := time.Now()
					if err := member.Connect(ctx, v.info(transport)); err != nil {
						t.Errorf("a member by %s: %v", transport, err)
					}
					t.Logf("a member is connected by %s after %v", transport, time.Since(start))
					cancel()
				}
				got := count()
				t.Logf("%d connections are kept, or packets come back, for %d", got, flood)
				if got == 0 || name == "TCP" && got == flood {
					t.Errorf("%d of %d are kept or answered", got, flood)
				}
			})
		}
	}
}

// A site with many nodes comes back after a power cut: all of them are let in, behind one address, also while strangers
// hold all the handshakes that they get.
func TestManyMembersBehindOneAddress(t *testing.T) {
	const many, allIn = 200, 10 * time.Second
	for name, flooded := range map[string]bool{"alone": false, "beside a flood": true} {
		t.Run(name, func(t *testing.T) {
			nodes := make([]node, many)
			for i := range nodes {
				nodes[i] = newNode(t)
			}
			v := newTestServer(t, testConfig(), state(nodes...))
			if flooded {
				idle(t, v, flood, manyHosts)
				begun(t, v, flood, manyHosts)
			}
			ctx, cancel := fair.WithTimeout(t.Context(), allIn)
			defer cancel()
			start := time.Now()
			var wg sync.WaitGroup
			for i, n := range nodes {
				wg.Go(func() {
					transport := []string{"tcp", "quic-v1"}[i%2]
					for try := n.Connect(ctx, v.info(transport)); try != nil; try = n.Connect(network.WithForceDirectDial(ctx, "again"), v.info(transport)) {
						if ctx.Err() != nil {
							t.Errorf("member %d by %s: %v", i, transport, try)
							return
						}
						time.Sleep(200 * time.Millisecond) // sleep: an agent tries again as soon
					}
				})
			}
			wg.Wait()
			t.Logf("all %d members are connected after %v", many, time.Since(start))
		})
	}
}

// The control: a few connections of the same tool are kept and answered.
func TestFewStrangersAreHeard(t *testing.T) {
	v := newTestServer(t, testConfig(), state(newNode(t)))
	if got := idle(t, v, onlySome, 1)(); got != onlySome {
		t.Errorf("%d of %d idle connections are kept", got, onlySome)
	}
	got, count := 0, begun(t, v, onlySome, 1)
	fair.Eventually(t, deadline, "half of the first packets are answered: some are lost", fair.True(func() bool {
		got += count()
		return got >= onlySome/2
	}))
}
