package pool

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	ma "github.com/multiformats/go-multiaddr"
)

func host(i int) netip.Prefix {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], 0x05000000+uint32(i))
	return Prefix(netip.AddrFrom4(b))
}

// shared is a pool of handshakes.
type shared struct {
	*Pool[int]
	known *Memory[netip.Prefix]
	n     int
}

func newShared(slots int) *shared {
	return &shared{New[int](slots), NewMemory[netip.Prefix](1 << 16), 0}
}

// take takes a slot by the rule for those that cannot be displaced.
func (s *shared) take(at netip.Prefix) error {
	if err := s.Share(at, s.known.Has(at)); err != nil {
		return err
	}
	s.n++
	s.Add(s.n, at)
	return nil
}

// leave gives up a slot of that prefix.
func (s *shared) leave(at netip.Prefix) { s.Remove(s.near[at][0].h, at) }

// fill has each of n hosts take what it gets, in turns.
func fill(p *shared, first, n int) (got int) {
	for more := true; more; {
		more = false
		for i := range n {
			if p.take(host(first+i)) == nil {
				got++
				more = true
			}
		}
	}
	return got
}

func TestShares(t *testing.T) {
	for _, c := range []struct {
		name             string
		slots, attacker  int
		stranger, member int // how many slots others get at least, one that nobody has seen and one where members were
	}{
		{"nobody else", 4300, 0, 200, 1000},
		{"one host", 4300, 1, 200, 1000},
		{"200 hosts", 4300, 200, 4, 350},
		{"5000 hosts", 4300, 5000, 0, 350},
		{"an agent, one host", 1024, 1, 60, 200},
		{"an agent, 200 hosts", 1024, 200, 1, 80},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newShared(c.slots)
			p.known.Add(host(1))
			held := fill(p, 1000, c.attacker)
			if s := fill(p, 2, 1); s < c.stranger {
				t.Errorf("a stranger gets %d slots beside %d, want %d", s, held, c.stranger)
			}
			if m := fill(p, 1, 1); m < c.member {
				t.Errorf("a member's address gets %d slots beside %d, want %d", m, held, c.member)
			}
			if p.Len() > c.slots {
				t.Errorf("%d of %d slots are taken", p.Len(), c.slots)
			}
		})
	}
}

// A stranger with a /48 has as many prefixes as a hundred hosts, and gets two hosts' part.
func TestPrefixOf48(t *testing.T) {
	p := newShared(1024)
	held := 0
	for more := true; more; {
		more = false
		for i := range 256 {
			if p.take(Prefix(netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 0, 0, byte(i)}))) == nil {
				held++
				more = true
			}
		}
	}
	if held > 1024/4 {
		t.Errorf("a /48 holds %d of 1024 slots", held)
	}
	if err := p.take(Prefix(netip.MustParseAddr("2001:db8:1::1"))); err != nil {
		t.Error("another /48:", err)
	}
	for prefix := range p.near {
		for len(p.near[prefix]) > 0 {
			p.leave(prefix)
		}
	}
	if p.Len()+len(p.groups)+len(p.near) != 0 {
		t.Errorf("%d slots are taken in the end, by %v", p.Len(), p.groups)
	}
}

func TestRefusals(t *testing.T) {
	p := newShared(64)
	for p.take(host(1)) == nil {
	}
	if err := p.take(host(1)); !errors.Is(err, ErrShare) {
		t.Errorf("%v, want %v", err, ErrShare)
	}
	fill(p, 100, 100)
	if err := p.take(host(2)); !errors.Is(err, ErrFull) {
		t.Errorf("%v, want %v", err, ErrFull)
	}
}

// A full pool makes room for another address at the expense of the one that has the most, oldest first, and for nobody
// beyond an equal share.
func TestDisplace(t *testing.T) {
	p, n := New[int](4), 0
	enter := func(prefix netip.Prefix) (h, victim int) {
		victim, ok := p.Displace(prefix, 0)
		if !ok {
			return 0, 0
		}
		if victim != 0 {
			p.Remove(victim, host(1))
		}
		n++
		p.Add(n, prefix)
		return n, victim
	}
	first, _ := enter(host(1))
	for range 3 {
		enter(host(1))
	}
	if h, _ := enter(host(1)); h != 0 {
		t.Error("the address that has all slots got one more")
	}
	other, victim := enter(host(2))
	if other == 0 || victim != first || p.At(host(1)) != 3 || p.Len() != 4 {
		t.Errorf("another address: %v instead of %v, %d slots left to the first, %d taken", other, victim, p.At(host(1)), p.Len())
	}
	if h, victim := enter(host(2)); h == 0 || victim != first+1 || p.At(host(1)) != 2 {
		t.Errorf("its second slot: %v instead of %v", h, victim)
	}
	if h, _ := enter(host(2)); h != 0 {
		t.Error("a third slot beside two of another address")
	}
	for prefix := range p.near {
		for len(p.near[prefix]) > 0 {
			p.Remove(p.near[prefix][0].h, prefix)
		}
	}
	p.Remove(first, host(1)) // again
	if p.Len() != 0 {
		t.Errorf("%d slots are taken by nobody", p.Len())
	}
}

// Where each has one, the one that came first makes room.
func TestDisplaceTheOldest(t *testing.T) {
	p := New[int](3)
	for i := range 3 {
		p.Add(1+i, host(i))
	}
	if victim, ok := p.Displace(host(9), 0); !ok || victim != 1 {
		t.Errorf("%d, %t; want 1", victim, ok)
	}
}

// siteOf is the IPv6 /56 number site of customer, a /48, at provider, a /32.
func siteOf(provider uint16, customer uint16, site byte) netip.Prefix {
	return Prefix(netip.AddrFrom16([16]byte{0x2a, 0, byte(provider >> 8), byte(provider), byte(customer >> 8), byte(customer), site}))
}

// Whoever has a /48, or a /32, displaces itself, however many sites it connects from: an edge that came first stays, and another
// one gets in, also at the same provider. The control is that the same connections get in while there are slots.
func TestDisplaceWideHolders(t *testing.T) {
	const slots = 256
	for name, attacker := range map[string]func(i int) netip.Prefix{
		"a /48":                        func(i int) netip.Prefix { return siteOf(1, 1, byte(i)) },
		"a /32":                        func(i int) netip.Prefix { return siteOf(1, uint16(i), byte(i)) },
		"a /48 of the edges' provider": func(i int) netip.Prefix { return siteOf(2, 1, byte(i)) },
	} {
		for _, least := range []time.Duration{0, time.Hour} {
			t.Run(fmt.Sprint(name, " least ", least), func(t *testing.T) {
				p, n := New[int](slots), 0
				in := map[int]netip.Prefix{}
				enter := func(at netip.Prefix) int {
					victim, ok := p.Displace(at, least)
					if !ok {
						return 0
					}
					if victim != 0 {
						p.Remove(victim, in[victim])
						delete(in, victim)
					}
					n++
					p.Add(n, at)
					in[n] = at
					return n
				}
				edge := enter(siteOf(2, 7, 0))
				for i := range slots - 1 {
					if enter(attacker(i)) == 0 {
						t.Fatalf("the control: connection %d has no slot", i)
					}
				}
				for i := range 4 * slots {
					enter(attacker(i))
				}
				second := enter(siteOf(2, 9, 0))
				v4 := enter(host(7))
				for i := range 4 * slots {
					enter(attacker(i))
				}
				for who, h := range map[string]int{"the edge that came first": edge, "another edge": second, "an edge with IPv4": v4} {
					if _, ok := in[h]; h == 0 || !ok {
						t.Errorf("%s has no slot", who)
					}
				}
				if p.Len() > slots {
					t.Errorf("%d slots", p.Len())
				}
			})
		}
	}
}

// Within one site the host with the most slots makes room for another, and an honest one keeps its own.
func TestDisplaceWithinASite(t *testing.T) {
	at := func(host int) netip.Prefix {
		prefix, _ := PrefixOf(ma.StringCast(fmt.Sprintf("/ip6/2a00:1:1:%x::1/tcp/1", host)))
		return prefix
	}
	p := New[int](4)
	for i, host := range []int{1, 2, 2, 2} {
		p.Add(1+i, at(host))
	}
	if victim, ok := p.Displace(at(3), 0); !ok || victim != 2 {
		t.Errorf("a third host: %d, %t; want the oldest of the host that has three", victim, ok)
	}
	if victim, ok := p.Displace(at(2), 0); ok {
		t.Errorf("a fourth slot of one host, in place of %d", victim)
	}
	if p.At(at(1)) != 4 {
		t.Errorf("the site has %d slots, want 4", p.At(at(1)))
	}
}

// Where each has one slot, nobody is displaced before it had its time.
func TestDisplaceAfterLeastStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New[int](3)
		for i := range 3 {
			p.Add(1+i, host(i))
			time.Sleep(time.Second)
		}
		if victim, ok := p.Displace(host(9), 5*time.Second); ok {
			t.Errorf("%d has to go after 3 s", victim)
		}
		time.Sleep(2 * time.Second)
		if victim, ok := p.Displace(host(9), 5*time.Second); !ok || victim != 1 {
			t.Errorf("%d, %t; want 1", victim, ok)
		}
	})
}

func TestOnePrefix(t *testing.T) {
	addr := netip.MustParseAddr
	for a, b := range map[string]string{"2001:db8:0:ff::2": "2001:db8:0:1::3", "::ffff:5.5.5.5": "5.5.5.5", "fe80::1%eth0": "fe80::2"} {
		if Prefix(addr(a)) != Prefix(addr(b)) {
			t.Errorf("%s and %s are two prefixes", a, b)
		}
	}
	if Prefix(addr("2001:db8:0:100::1")) == Prefix(addr("2001:db8:0:1::1")) || host(1) == host(2) {
		t.Error("two prefixes count as one")
	}
	p := newShared(4000)
	if err := errors.Join(p.take(Prefix(netip.Addr{})), p.take(Prefix(netip.Addr{}))); err != nil {
		t.Errorf("no address at all: %v", err)
	}
}

func TestPrefixOf(t *testing.T) {
	for addr, want := range map[string]string{
		"/ip4/5.5.5.5/tcp/1":                   "5.5.5.5/32",
		"/ip6/2001:db8:1:234::1/udp/1/quic-v1": "2001:db8:1:234::/64",
		"/ip6/::ffff:5.5.5.5/tcp/1":            "5.5.5.5/32",
		"/dns/example.org/tcp/1":               "::/56",
	} {
		if got, has := PrefixOf(ma.StringCast(addr)); got.String() != want || has != (addr[:4] != "/dns") {
			t.Errorf("%s: %v, %t, want %s", addr, got, has, want)
		}
	}
}

// A full memory forgets the oldest first.
func TestMemory(t *testing.T) {
	m := NewMemory[int](3)
	for _, k := range []int{1, 2, 1, 3, 4} {
		m.Add(k)
	}
	for k, want := range map[int]bool{1: false, 2: true, 3: true, 4: true} {
		if m.Has(k) != want {
			t.Errorf("%d: %t", k, !want)
		}
	}
	if len(m.set) != 3 || len(m.order) != 3 {
		t.Errorf("%d and %d are remembered, want 3", len(m.set), len(m.order))
	}
}

// Every sequence leaves the pool with what its slots add up to.
func FuzzPool(f *testing.F) {
	f.Add([]byte{0, 1, 2, 0x80, 0x81, 0x42, 1})
	f.Fuzz(func(t *testing.T, ops []byte) {
		p := newShared(16)
		held := map[netip.Prefix]int{}
		for _, op := range ops {
			a := host(int(op & 0x3f))
			switch {
			case op&0xc0 == 0x80 && held[a] > 0:
				p.leave(a)
				held[a]--
			case op&0xc0 == 0x40:
				p.known.Add(a)
			case op&0xc0 == 0xc0:
				if victim, ok := p.Displace(a, 0); ok {
					for prefix, some := range p.near {
						if victim != 0 && some[0].h == victim {
							p.Remove(victim, prefix)
							held[prefix]--
							break
						}
					}
					p.n++
					p.Add(p.n, a)
					held[a]++
				}
			default:
				if p.take(a) == nil {
					held[a]++
				}
			}
			sum := 0
			for a, n := range held {
				sum += n
				if p.At(a) != n {
					t.Fatalf("%s holds %d slots, counted are %d", a, n, p.At(a))
				}
			}
			if sum != p.Len() || sum > p.Slots() {
				t.Fatalf("%d slots are held, %d counted, of %d", sum, p.Len(), p.Slots())
			}
		}
		for a, n := range held {
			for range n {
				p.leave(a)
			}
		}
		if p.Len() != 0 || len(p.near) != 0 {
			t.Fatalf("%d slots are taken in the end, by %v", p.Len(), p.near)
		}
	})
}
