package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	ma "github.com/multiformats/go-multiaddr"
	"github.com/quic-go/quic-go"

	"edgemesh/test/fair"
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
	return func() int { return kept(conns) }
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

// firstPackets are the first packets of n QUIC connections.
func firstPackets(t *testing.T, n int) [][]byte {
	t.Helper()
	listen := func() *net.UDPConn {
		c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	sink := listen()
	tr := &quic.Transport{Conn: listen()}
	defer tr.Close()
	out := make([][]byte, n)
	for i := range out {
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			conf := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"libp2p"}} //nolint:gosec // nobody answers
			_, _ = tr.Dial(ctx, sink.LocalAddr(), conf, nil)
		}()
		b := make([]byte, 2048)
		_ = sink.SetReadDeadline(time.Now().Add(deadline))
		k, err := sink.Read(b)
		cancel()
		if err != nil {
			t.Fatalf("first packet %d of %d: %v", i, n, err)
		}
		out[i] = b[:k]
	}
	return out
}

// initials sends the first packets of n QUIC connections to the relay, from so many hosts in turns, as who forges
// his address could. The count is how many packets come back.
func initials(t *testing.T, v *server, n, hosts int) (count func() int) {
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
	for i, b := range firstPackets(t, n) {
		if _, err := socks[i%hosts].Write(b); err != nil {
			t.Fatal(err)
		}
		if i%50 == 49 {
			time.Sleep(5 * time.Millisecond) // 10,000 a second, which the relay's socket can hold
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

// Members get in by both transports while strangers hold all the handshakes that they get.
func TestFloodsShutNobodyOut(t *testing.T) {
	for name, attack := range map[string]func(t *testing.T, v *server, n, hosts int) func() int{"TCP": idle, "QUIC": initials} {
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

// The control: a few connections of the same tool are kept and answered.
func TestFewStrangersAreHeard(t *testing.T) {
	v := newTestServer(t, testConfig(), state(newNode(t)))
	if got := idle(t, v, onlySome, 1)(); got != onlySome {
		t.Errorf("%d of %d idle connections are kept", got, onlySome)
	}
	if got := initials(t, v, onlySome, 1)(); got < onlySome/2 { // some are lost
		t.Errorf("%d packets answer %d first packets", got, onlySome)
	}
}
