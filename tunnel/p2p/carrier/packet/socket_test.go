package packet

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"edgemesh/internal/nstest"
	"edgemesh/internal/upkeep"
)

// onLinks opens a socket in a namespace with so many interfaces, and returns one of these.
func onLinks(t testing.TB, n int) (s *socket, link *net.Interface) {
	nstest.Enter(t)
	var commands strings.Builder
	for i := range n {
		fmt.Fprintf(&commands, "ip link add d%d type bridge\n", i)
	}
	nstest.Run(t, commands.String())
	u, err := net.ListenUDP("udp6", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { u.Close() })
	if s, err = newSocket(u, nil, new(upkeep.Wire), func() {}); err != nil {
		t.Fatal(err)
	}
	if link, err = net.InterfaceByName("d7"); err != nil {
		t.Fatal(err)
	}
	return s, link
}

// stranger is packet i of a host on the link: each is from another link-local address and port.
func stranger(i int, link uint32) *unix.RawSockaddrInet6 {
	return &unix.RawSockaddrInet6{Family: unix.AF_INET6, Scope_id: link, Port: uint16(i),
		Addr: netip.MustParseAddr("fe80::1").As16()}
}

// A host on the link sends from ever new link-local addresses and ports: the kernel is not queried for each packet, and the
// address still has the name of the interface, also of one that was renamed.
func TestLinkLocalStrangers(t *testing.T) {
	s, link := onLinks(t, 100)
	const packets = 2000
	began := time.Now()
	if _, err := net.Interfaces(); err != nil {
		t.Fatal(err)
	}
	list := time.Since(began)
	began = time.Now()
	for i := range packets {
		if a := s.froms.addr(stranger(i, uint32(link.Index)), s.zone); a.Zone != "d7" {
			t.Fatalf("zone %q of %s", a.Zone, a)
		}
	}
	if each := time.Since(began) / packets; each > list/10 { // the benchmark shows less than 2 µs; a list takes 700
		t.Errorf("%v a packet, and %v for a list of the interfaces", each, list)
	}
	nstest.Run(t, "ip link set d7 name e7")
	time.Sleep(zoneFor) // sleep: the name that is kept expires
	if a := s.froms.addr(stranger(1, uint32(link.Index)), s.zone); a.Zone != "e7" {
		t.Errorf("zone %q after the interface was renamed", a.Zone)
	}
	for i := range 3 * maxZones {
		if a := s.froms.addr(stranger(1, uint32(10000+i)), s.zone); a.Zone != fmt.Sprint(10000+i) {
			t.Fatalf("zone %q of an interface that is gone", a.Zone)
		}
	}
	if len(s.zones) > maxZones {
		t.Errorf("%d interfaces are remembered", len(s.zones))
	}
}

func BenchmarkLinkLocalStrangers(b *testing.B) {
	s, link := onLinks(b, 100)
	for i := 0; b.Loop(); i++ {
		s.froms.addr(stranger(i, uint32(link.Index)), s.zone)
	}
}

// A connection's packets leave from the source it was given; those of another one to the same address do not.
func TestSendFrom(t *testing.T) {
	far, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	near, err := net.ListenUDP("udp4", nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := newSocket(near, nil, new(upkeep.Wire), func() {})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var all sockets
	s.named = &all.named
	to, other := *far.LocalAddr().(*net.UDPAddr), *far.LocalAddr().(*net.UDPAddr)
	src := netip.MustParseAddr("127.0.0.2")
	from := func(to *net.UDPAddr) netip.Addr {
		t.Helper()
		if _, _, err := s.WriteMsgUDP([]byte("x"), nil, to); err != nil {
			t.Fatal(err)
		}
		_, at, err := far.ReadFromUDPAddrPort(make([]byte, 9))
		if err != nil {
			t.Fatal(err)
		}
		return at.Addr()
	}
	forget := all.SendFrom(&to, src)
	if a, b := from(&to), from(&other); a != src || b == src {
		t.Errorf("from %v and %v, want %v alone", a, b, src)
	}
	if a, b := all.Source(&to), all.Source(&other); a != src || b.IsValid() {
		t.Errorf("sources %v and %v, want %v alone", a, b, src)
	}
	forget()
	forget()
	if a := from(&to); a == src || all.named.count.Load() != 0 {
		t.Errorf("from %v after it was forgotten", a)
	}
}

// What leaves and arrives is counted as the wire has it: each packet of a train with headers of its own. The first byte is QUIC's.
func TestWire(t *testing.T) {
	open := func() (*socket, *upkeep.Wire) {
		u, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		w := new(upkeep.Wire)
		s, err := newSocket(u, quiet{}, w, func() {})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s, w
	}
	near, out := open()
	far, in := open()
	to, _ := far.LocalAddr().(*net.UDPAddr)
	if _, _, err := near.WriteMsgUDP(bytes.Repeat([]byte{0x40}, 2500), segmentControl(nil, 1000), to); err != nil {
		t.Skip("this kernel sends no trains:", err)
	}
	if _, err := near.WriteTo(bytes.Repeat([]byte{0x40}, 100), to); err != nil {
		t.Fatal(err)
	}
	want := 2500 + 100 + 4*upkeep.Header
	ms := []ipv4.Message{{Buffers: [][]byte{make([]byte, 1500)}, OOB: make([]byte, udpOOB)}}
	for got := 0; got < 2600; got += ms[0].N {
		if _, err := far.ReadBatch(ms, 0); err != nil {
			t.Fatal(err)
		}
	}
	for _, w := range []*upkeep.Wire{out, in} {
		if tx, rx := w.All.Sums(); tx+rx != uint64(want) {
			t.Errorf("%d bytes out, %d in, want %d", tx, rx, want)
		}
	}
}

// quiet takes nothing.
type quiet struct{}

func (quiet) take([]byte, *received)            {}
func (quiet) forward([]byte, int, *net.UDPAddr) {}
func (quiet) flush()                            {}

// How long a message has waited in the kernel is known where that is asked for.
func TestAge(t *testing.T) {
	for _, on := range []bool{true, false} {
		s := New(Config{Sealed: on, Spawn: func(f func()) bool { go f(); return true }, Log: slog.New(slog.DiscardHandler)})
		l, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		shared, err := s.Share(l)
		if err != nil {
			t.Fatal(err)
		}
		defer shared.Close()
		k := shared.(*socket)
		c, err := net.DialUDP("udp4", nil, l.LocalAddr().(*net.UDPAddr))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		known := false
		for range 20 { // the kernel may take a moment until it stamps packets when they come
			if _, err := c.Write([]byte{0x40, 1, 2, 3}); err != nil { // one of QUIC, which is read
				t.Fatal(err)
			}
			time.Sleep(20 * time.Millisecond) // sleep: so long the packet waits
			m := []ipv4.Message{{Buffers: [][]byte{make([]byte, 2000)}, OOB: make([]byte, udpOOB)}}
			if _, err := k.ReadBatch(m, 0); err != nil {
				t.Fatal(err)
			}
			known = known || k.rest.age >= 20*time.Millisecond
			if !on && k.rest.age != 0 {
				t.Errorf("it waited for %v, which nobody has asked for", k.rest.age)
			}
		}
		if known != on {
			t.Errorf("on %v: how long packets wait is known: %v", on, known)
		}
	}
}
