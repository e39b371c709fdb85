package knock

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
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
		{"an agent, 200 hosts", 1024, 200, 1, 80},
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

// A stranger with a /48 has as many sites as a hundred hosts, and gets two hosts' part.
func TestPrefixOf48(t *testing.T) {
	p := newPool(1024)
	held := 0
	for more := true; more; {
		more = false
		for i := range 256 {
			if p.take(netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 0, 0, byte(i)})) == nil {
				held++
				more = true
			}
		}
	}
	if held > 1024/4 {
		t.Errorf("a /48 holds %d of 1024 places", held)
	}
	if err := p.take(netip.MustParseAddr("2001:db8:1::1")); err != nil {
		t.Error("another /48:", err)
	}
}

// One relay's circuits leave the places of others alone.
func TestCircuitsOfOneRelay(t *testing.T) {
	g := New(&network.NullResourceManager{}, Config{Places: 64, IsMember: func(peer.ID) bool { return false }, Refused: func(string, peer.ID, string) {}})
	open := func(relay string) (network.ConnManagementScope, error) {
		return g.OpenConnection(network.DirInbound, false, ma.StringCast("/ip4/5.5.5.5/tcp/4470/p2p/"+relay+"/p2p-circuit"))
	}
	const one, other = "12D3KooWGRUaYYqUqDcDuWPSRJUJ2ZxpjBnWwvDBXyjGX5CWyNL8", "12D3KooWD3eckifWpRn9wQpMG9R9hX3sD158z7EqHWmweQAJU5SA"
	var held []network.ConnManagementScope
	for s, err := open(one); err == nil; s, err = open(one) {
		held = append(held, s)
	}
	if len(held) != 64/circuitPart {
		t.Errorf("one relay has %d handshakes under way, want %d", len(held), 64/circuitPart)
	}
	if _, err := open(other); err != nil {
		t.Error("another relay:", err)
	}
	if _, err := g.OpenConnection(network.DirInbound, true, ma.StringCast("/ip4/5.5.5.5/tcp/1")); err != nil {
		t.Error("a direct connection from the relay's address:", err)
	}
	_ = held[0].SetPeer("member")
	if _, err := open(one); err != nil {
		t.Error("after one of its handshakes:", err)
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
