package places

import (
	"net/netip"
	"testing"
	"time"

	ma "github.com/multiformats/go-multiaddr"
)

type holder struct {
	near  netip.Prefix
	until time.Time
}

func (h *holder) Near() netip.Prefix { return h.near }
func (h *holder) Until() time.Time   { return h.until }

// A full pool makes room for another address at the expense of the one that has the most, oldest first, and for nobody
// beyond an equal share.
func TestPool(t *testing.T) {
	p := New[*holder](4)
	start := time.Now()
	enter := func(ip string, second int) (h, victim *holder) {
		h = &holder{Near(ma.StringCast("/ip4/" + ip + "/tcp/1")), start.Add(time.Duration(second) * time.Second)}
		victim, ok := p.Room(h.near)
		if !ok {
			return nil, nil
		}
		if victim != nil {
			p.Remove(victim)
		}
		p.Add(h)
		return h, victim
	}
	first, _ := enter("5.5.5.5", 0)
	for i := range 3 {
		enter("5.5.5.5", 1+i)
	}
	if h, _ := enter("5.5.5.5", 9); h != nil {
		t.Error("the address that has all places got one more")
	}
	other, victim := enter("5.5.6.6", 10)
	if other == nil || victim != first || p.At(first.near) != 3 || p.Len() != 4 {
		t.Errorf("another address: %v instead of %v, %d places left to the first, %d taken", other, victim, p.At(first.near), p.Len())
	}
	if h, victim := enter("5.5.6.6", 11); h == nil || victim.near != first.near {
		t.Errorf("its second place: %v instead of %v", h, victim)
	}
	if h, _ := enter("5.5.6.6", 12); h != nil {
		t.Error("a third place beside two of another address")
	}
	for len(p.near) > 0 {
		for _, some := range p.near {
			p.Remove(some[0])
			break
		}
	}
	if p.Len() != 0 {
		t.Errorf("%d places are taken by nobody", p.Len())
	}
}

func TestNear(t *testing.T) {
	for addr, want := range map[string]string{
		"/ip4/5.5.5.5/tcp/1":                   "5.5.5.5/32",
		"/ip6/2001:db8:1:234::1/udp/1/quic-v1": "2001:db8:1:200::/56",
		"/ip6/::ffff:5.5.5.5/tcp/1":            "5.5.5.5/32",
		"/dns/example.org/tcp/1":               "::/56",
	} {
		if got := Near(ma.StringCast(addr)); got.String() != want {
			t.Errorf("%s: %v, want %s", addr, got, want)
		}
	}
}
