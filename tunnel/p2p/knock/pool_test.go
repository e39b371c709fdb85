package knock

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"
)

func host(i int) netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], 0x05000000+uint32(i))
	return netip.AddrFrom4(b)
}

// fill has each of n hosts take what it gets, in turns.
func fill(p *pool, first, n int) (got int) {
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
		places, attacker int
		stranger, member int // how many places others get at least, one that nobody has seen and one where members were
	}{
		{"nobody else", 4300, 0, 200, 1000},
		{"one host", 4300, 1, 200, 1000},
		{"200 hosts", 4300, 200, 4, 350},
		{"5000 hosts", 4300, 5000, 0, 350},
		{"an agent, one host", 1024, 1, 60, 200},
		{"an agent, 200 hosts", 1024, 200, 0, 80},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPool(c.places)
			p.remember(host(1))
			held := fill(p, 1000, c.attacker)
			if s := fill(p, 2, 1); s < c.stranger {
				t.Errorf("a stranger gets %d places beside %d, want %d", s, held, c.stranger)
			}
			if m := fill(p, 1, 1); m < c.member {
				t.Errorf("a member's address gets %d places beside %d, want %d", m, held, c.member)
			}
			if p.taken > c.places {
				t.Errorf("%d of %d places are taken", p.taken, c.places)
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	p := newPool(64)
	for p.take(host(1)) == nil {
	}
	if err := p.take(host(1)); !errors.Is(err, errShare) {
		t.Errorf("%v, want %v", err, errShare)
	}
	fill(p, 100, 100)
	if err := p.take(host(2)); !errors.Is(err, errFull) {
		t.Errorf("%v, want %v", err, errFull)
	}
	if !p.busy() {
		t.Error("a full pool does not ask for the source address's proof")
	}
}

func TestOneSite(t *testing.T) {
	p := newPool(4000)
	addr := netip.MustParseAddr
	p.remember(addr("2001:db8:0:1::1"))
	for a, b := range map[string]string{"2001:db8:0:ff::2": "2001:db8:0:1::3", "::ffff:5.5.5.5": "5.5.5.5", "fe80::1%eth0": "fe80::2"} {
		if site(addr(a)) != site(addr(b)) {
			t.Errorf("%s and %s are two sites", a, b)
		}
	}
	if site(addr("2001:db8:0:100::1")) == site(addr("2001:db8:0:1::1")) || site(host(1)) == site(host(2)) {
		t.Error("two sites count as one")
	}
	if err := errors.Join(p.take(netip.Addr{}), p.take(netip.Addr{})); err != nil {
		t.Errorf("no address at all: %v", err)
	}
}

// Every sequence leaves the pool with what its places add up to.
func FuzzPool(f *testing.F) {
	f.Add([]byte{0, 1, 2, 0x80, 0x81, 0x42, 1})
	f.Fuzz(func(t *testing.T, ops []byte) {
		p := newPool(16)
		held := map[netip.Addr]int{}
		for _, op := range ops {
			a := host(int(op & 0x3f))
			switch {
			case op&0xc0 == 0x80 && held[a] > 0:
				p.leave(a)
				held[a]--
			case op&0xc0 == 0x40:
				p.remember(a)
			default:
				if p.take(a) == nil {
					held[a]++
				}
			}
			sum := 0
			for a, n := range held {
				sum += n
				if p.by[site(a)] != n {
					t.Fatalf("%s holds %d places, counted are %d", a, n, p.by[site(a)])
				}
			}
			if sum != p.taken || sum > p.places {
				t.Fatalf("%d places are held, %d counted, of %d", sum, p.taken, p.places)
			}
		}
		for a, n := range held {
			for range n {
				p.leave(a)
			}
		}
		if p.taken != 0 || len(p.by) != 0 {
			t.Fatalf("%d places are taken in the end, by %v", p.taken, p.by)
		}
	})
}
