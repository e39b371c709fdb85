package plan

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"edgemesh/internal/membership/mesh"
)

// TestGatewaysOf: one match for each range where all blocks have one length, and more only for blocks that are longer.
func TestGatewaysOf(t *testing.T) {
	for _, c := range []struct {
		blocks []netip.Prefix
		ranges []netip.Prefix
		want   string
	}{
		{nil, cidrs("10.244.0.0/16"), "[]"},
		{cidrs("10.244.1.0/24", "10.244.2.0/24", "10.244.9.0/24"), cidrs("10.244.0.0/16"), "[10.244.0.1/255.255.0.255]"},
		{cidrs("10.244.1.0/24"), cidrs("10.244.1.0/24"), "[10.244.1.1/255.255.255.255]"},
		{cidrs("10.244.1.0/24", "10.244.2.0/26", "10.244.2.64/26"), cidrs("10.244.0.0/16"), "[10.244.0.1/255.255.0.255 10.244.2.65/255.255.255.255]"},
		{cidrs("10.244.1.0/24", "10.9.0.0/20"), cidrs("10.244.0.0/16", "10.9.0.0/16"), "[10.244.0.1/255.255.0.255 10.9.0.1/255.255.15.255]"},
		{cidrs("fd00:1::/64", "fd00:2::/64"), cidrs("fd00::/16"), "[fd00::1/ffff::ffff:ffff:ffff:ffff]"},
	} {
		if got := fmt.Sprint(gatewaysOf(c.blocks, c.ranges)); got != c.want {
			t.Errorf("%v in %v: %s, want %s", c.blocks, c.ranges, got, c.want)
		}
	}
}

// TestGatewaysOfMatchNoPod tries every address of random clusters.
func TestGatewaysOfMatchNoPod(t *testing.T) {
	r := netip.MustParsePrefix("10.244.0.0/20")
	for seed := range uint64(50) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		var blocks []netip.Prefix
		owner := map[netip.Addr]netip.Prefix{}
		for at := r.Addr(); r.Contains(at); {
			bits := 22 + rnd.IntN(9)
			b := netip.PrefixFrom(at, bits)
			if b != b.Masked() {
				at = at.Next() // not aligned
				continue
			}
			taken := rnd.IntN(3) > 0
			if taken {
				blocks = append(blocks, b)
			}
			for ; b.Contains(at); at = at.Next() {
				if taken {
					owner[at] = b
				}
			}
		}
		matches := gatewaysOf(blocks, []netip.Prefix{r})
		for a, b := range owner {
			is := false
			for _, m := range matches {
				is = is || m.has(a)
			}
			if is != (a == mesh.Gateway(b)) {
				t.Fatalf("seed %d: %s of %s matches: %v; matches %v", seed, a, b, is, matches)
			}
		}
	}
}

// What pods may not reach over IPv4 they do not reach through NAT64 either.
func TestDenyThroughNAT64(t *testing.T) {
	deny := cidrs("10.0.0.0/8", "169.254.169.254/32", "fd00:ec2::254/128")
	got := accessOf(mesh.Host{Access: mesh.Access{PodDenyCIDRs: deny}}, Family{V6: true, Wanted: true})
	denied := func(a netip.Addr) bool {
		return slices.ContainsFunc(got.Deny, func(p netip.Prefix) bool { return p.Contains(a) }) ||
			slices.ContainsFunc(got.Inside, func(m Match) bool { return m.has(a) })
	}
	for a, want := range map[string]bool{
		"64:ff9b::10.1.2.3": true, "64:ff9b::169.254.169.254": true, "fd00:ec2::254": true, "64:ff9b:1::10.1.2.3": true, "64:ff9b:1:2:3:4:10.1.2.3": true,
		"64:ff9b::11.1.2.3": false, "64:ff9b::169.254.169.253": false, "fd00:ec2::253": false, "64:ff9b:1:2:3:4:11.1.2.3": false, "2001:db8::10.1.2.3": false,
	} {
		if denied(netip.MustParseAddr(a)) != want {
			t.Errorf("%s denied: %v; %v %v", a, !want, got.Deny, got.Inside)
		}
	}
	if v4 := accessOf(mesh.Host{Access: mesh.Access{PodDenyCIDRs: deny}}, Family{Wanted: true}); len(v4.Deny) != 2 || len(v4.Inside) != 0 {
		t.Errorf("over IPv4: %+v", v4)
	}
}
