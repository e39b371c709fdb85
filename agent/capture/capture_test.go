package capture

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"edgemesh/agent/control"
	"edgemesh/internal/nstest"
)

// udp4 is a datagram of some bytes.
func udp4(src, dst string, size int) []byte {
	b := make([]byte, size)
	b[0], b[8], b[9] = 0x45, 64, 17
	binary.BigEndian.PutUint16(b[2:], uint16(size))
	copy(b[12:], netip.MustParseAddr(src).AsSlice())
	copy(b[16:], netip.MustParseAddr(dst).AsSlice())
	binary.BigEndian.PutUint16(b[20:], 1234)
	binary.BigEndian.PutUint16(b[22:], 53)
	binary.BigEndian.PutUint16(b[24:], uint16(size-20))
	return b
}

// Packets belong to the peer at either end; filters and rubbish leave the rest out.
func TestMatch(t *testing.T) {
	st := control.Status{Peers: []control.PeerStatus{
		{Node: "edge-2", PodCIDRs: []string{"10.244.2.0/24", "fd00:2::/64"}, Path: "relayed", Transport: "tcp", Relay: "12D3"},
		{Node: "edge-3", PodCIDRs: []string{"10.244.3.0/24", "rubbish"}, Path: "native", Transport: "ip"},
	}}
	v6 := make([]byte, 48)
	v6[0], v6[6] = 0x60, 58
	copy(v6[24:], netip.MustParseAddr("fd00:2::7").AsSlice())
	for name, c := range map[string]struct {
		filter Filter
		packet []byte
		want   string
	}{
		"to a peer":       {Filter{}, udp4("10.244.1.5", "10.244.2.7", 40), "edge-2"},
		"from a peer":     {Filter{}, udp4("10.244.3.7", "10.244.1.5", 40), "edge-3"},
		"IPv6":            {Filter{}, v6, "edge-2"},
		"of nobody":       {Filter{}, udp4("10.244.1.5", "10.244.1.6", 40), ""},
		"another peer":    {Filter{Peer: "edge-3"}, udp4("10.244.1.5", "10.244.2.7", 40), ""},
		"the pod":         {Filter{Pod: netip.MustParseAddr("10.244.1.5")}, udp4("10.244.1.5", "10.244.2.7", 40), "edge-2"},
		"another pod":     {Filter{Pod: netip.MustParseAddr("10.244.1.6")}, udp4("10.244.1.5", "10.244.2.7", 40), ""},
		"cut":             {Filter{}, udp4("10.244.1.5", "10.244.2.7", 40)[:19], ""},
		"nothing":         {Filter{}, nil, ""},
		"another version": {Filter{}, bytes.Repeat([]byte{0x50}, 60), ""},
	} {
		got := ""
		if p := NewMatch(st, c.filter).Peer(c.packet); p != nil {
			got = p.Node
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	if got := Comment(&st.Peers[0]); got != "peer edge-2, path relayed/tcp via 12D3" {
		t.Error(got)
	}
	later := udp4("10.244.1.5", "10.244.2.7", 40)
	binary.BigEndian.PutUint16(later[6:], 185)
	for want, b := range map[string][]byte{"10.244.1.5 > 10.244.2.7 UDP, later fragment, 40 bytes": later, "10.244.1.5:1234 > 10.244.2.7:53 UDP, 40 bytes": udp4("10.244.1.5", "10.244.2.7", 40),
		":: > fd00:2::7 ICMPv6, 48 bytes": v6, "3 bytes, not IP": []byte("abc"), "10.244.1.5 > 10.244.2.7 UDP, 22 bytes": udp4("10.244.1.5", "10.244.2.7", 40)[:22]} {
		if got := Line(Packet{Data: b, Size: len(b)}); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// What a NetworkPolicy drops behind the interface is marked from the flow's first packet on; what leaves, and other flows, are not; and
// the agent is queried no more than needed.
func TestDrops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queries := 0
		all := []control.PolicyFlow{
			{From: "10.244.2.7", To: "10.244.1.5", Protocol: "UDP", Port: 53, Direction: "ingress", Policies: []string{"shop/web"}},
			{From: "10.244.1.6", To: "10.244.2.7", Protocol: "UDP", Port: 53, Direction: "egress", Policies: []string{"shop/db"}},
		}
		d := NewDrops(func() []control.PolicyFlow { queries++; return all })
		in := Packet{Data: udp4("10.244.2.7", "10.244.1.5", 40)}
		for range 100 {
			if got := d.Comment(in); got != ", dropped here by NetworkPolicy shop/web" {
				t.Fatalf("%q", got)
			}
		}
		time.Sleep(dropsEvery)
		for _, p := range []Packet{{Data: udp4("10.244.3.7", "10.244.1.5", 40)}, {Data: in.Data, Out: true}, {Data: udp4("10.244.1.6", "10.244.2.7", 40)}, {}} {
			if got := d.Comment(p); got != "" {
				t.Errorf("%v: %q", p, got)
			}
		}
		if queries != 2 {
			t.Errorf("%d queries for two flows within 50 ms each", queries)
		}
		all = nil
		time.Sleep(dropsStay)
		if got := d.Comment(in); got != "" {
			t.Errorf("after the policy has gone: %q", got)
		}
	})
}

// The file is one that tcpdump reads, with interface, time, direction and size; blocks have their length at both ends.
func TestWriter(t *testing.T) {
	var b bytes.Buffer
	w, err := NewWriter(&b)
	if err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1_800_000_000, 123_456_789)
	for _, p := range []Packet{
		{At: at, Link: "edgemesh-tun", Out: true, Data: udp4("10.244.1.5", "10.244.2.7", 41), Size: 41},
		{At: at, Link: "eth0", Data: udp4("10.244.3.7", "10.244.1.5", 60)[:32], Size: 60},
	} {
		if err := w.Packet(p, "peer edge-2, path relayed\xff"); err != nil {
			t.Fatal(err)
		}
	}
	file := b.Bytes()
	var kinds []uint32
	for rest := file; len(rest) > 0; {
		n := int(binary.LittleEndian.Uint32(rest[4:]))
		if n%4 != 0 || n > len(rest) || binary.LittleEndian.Uint32(rest[n-4:]) != uint32(n) {
			t.Fatalf("a block of %d bytes, %d are left", n, len(rest))
		}
		kinds, rest = append(kinds, binary.LittleEndian.Uint32(rest)), rest[n:]
	}
	if !slices.Equal(kinds, []uint32{blockSection, blockInterface, blockPacket, blockPacket}) {
		t.Errorf("blocks %x", kinds)
	}
	if !bytes.Contains(file, []byte("peer edge-2, path relayed?, on eth0")) {
		t.Error("no comment")
	}
	tcpdump, err := exec.LookPath("tcpdump")
	if err != nil {
		t.Skip("the rest needs tcpdump")
	}
	name := filepath.Join(t.TempDir(), "x.pcapng")
	if err := os.WriteFile(name, file, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), tcpdump, "-nn", "-tt", "--nano", "-r", name).CombinedOutput()
	for _, want := range []string{"1800000000.123456789", "10.244.1.5.1234 > 10.244.2.7.53", "10.244.3.7.1234 > 10.244.1.5.53"} {
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("tcpdump: %v, no %q in\n%s", err, want, out)
		}
	}
}

// Native paths are captured on the interfaces that their routes lead over, whatever kind these are, and on no other.
func TestLinks(t *testing.T) {
	nstest.Enter(t)
	nstest.Run(t, "ip link add br0 type bridge\nip link add port0 type veth peer name far0\nip link set port0 master br0 up\nip link set br0 up\n"+
		"ip link add eth1 type veth peer name other\nip link set eth1 up\nip link set other up")
	names := func(native bool) string {
		links, err := Links([]string{"lo"}, native)
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, l := range links {
			out = append(out, l.Name)
		}
		slices.Sort(out)
		return strings.Join(out, " ")
	}
	if got := names(true); got != "lo" {
		t.Errorf("without native paths: %s", got)
	}
	nstest.Run(t, "ip route add 10.244.2.0/24 dev br0 metric 512 table 5210 proto 210\nip route add 10.244.0.0/16 dev other metric 1024 table 5210 proto 210\n"+
		"ip -6 route add fd00:3::/64 dev eth1 metric 512 table 5210 proto 210")
	if got := names(true); got != "br0 eth1 lo" {
		t.Errorf("with native paths over br0 and eth1: %s", got)
	}
	if got := names(false); got != "lo" {
		t.Errorf("none wanted: %s", got)
	}
}

// What passes an interface is seen, with its direction, until there are enough or the time is over.
func TestRun(t *testing.T) {
	nstest.Enter(t)
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	links, err := Links([]string{"lo"}, false)
	if err != nil || len(links) != 1 || links[0] != (Link{lo.Index, "lo"}) {
		t.Fatalf("%v, %v", links, err)
	}
	sink, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() { // until it is seen: the socket that captures opens some time
		defer close(stopped)
		for {
			_, _ = sink.WriteTo([]byte("hello"), sink.LocalAddr())
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	defer func() { close(stop); <-stopped }()
	enough := errors.New("enough")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	seen := map[bool]int{}
	_, err = Run(ctx, links, func(p Packet) error {
		if !strings.Contains(Line(p), "127.0.0.1:") || p.Size != 33 || len(p.Data) != 33 || p.Link != "lo" {
			t.Errorf("%s, %d bytes, on %s", Line(p), len(p.Data), p.Link)
		}
		if seen[p.Out]++; seen[true] > 2 && seen[false] > 2 {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) {
		t.Errorf("%v after %v packets", err, seen)
	}
	short, end := context.WithTimeout(t.Context(), time.Millisecond)
	defer end()
	if _, err := Run(short, links, func(Packet) error { return nil }); err != nil {
		t.Errorf("the end of the time: %v", err)
	}
	if _, err := Run(ctx, []Link{{Index: 4242, Name: "gone"}}, func(Packet) error { return nil }); err == nil || !strings.Contains(err.Error(), "capture on gone") {
		t.Errorf("an interface that is not there: %v", err)
	}
}

// TestFirstFragment: the first fragment has its ports, later ones have none.
func TestFirstFragment(t *testing.T) {
	for flags, later := range map[uint16]bool{0: false, 0x4000: false, 0x2000: false, 0x2001: true, 0x0001: true} {
		b := make([]byte, 28)
		b[0], b[9], b[21], b[23] = 0x45, 17, 53, 80
		binary.BigEndian.PutUint16(b[6:], flags)
		if h, ok := headerOf(b); !ok || h.later != later || h.ports == later {
			t.Errorf("flags and offset %#x: %+v", flags, h)
		}
	}
}
