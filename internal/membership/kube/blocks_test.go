package kube

import (
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"edgemesh/internal/membership/kube/api"
)

func TestLowestFree(t *testing.T) {
	p := netip.MustParsePrefix
	for name, x := range map[string]struct {
		ranges, used, prefer []netip.Prefix
		bits                 int
		want                 string
	}{
		"the first":                     {ranges: []netip.Prefix{p("10.0.0.0/8")}, bits: 24, want: "10.0.0.0/24"},
		"past what is used":             {ranges: []netip.Prefix{p("10.0.0.0/8")}, used: []netip.Prefix{p("10.0.0.0/24"), p("10.0.2.0/24")}, bits: 24, want: "10.0.1.0/24"},
		"past a larger one":             {ranges: []netip.Prefix{p("10.0.0.0/8")}, used: []netip.Prefix{p("10.0.0.0/9")}, bits: 24, want: "10.128.0.0/24"},
		"past a smaller one":            {ranges: []netip.Prefix{p("10.0.0.0/8")}, used: []netip.Prefix{p("10.0.0.128/25")}, bits: 24, want: "10.0.1.0/24"},
		"in the second range":           {ranges: []netip.Prefix{p("10.0.0.0/24"), p("10.9.0.0/16")}, used: []netip.Prefix{p("10.0.0.0/24")}, bits: 24, want: "10.9.0.0/24"},
		"none":                          {ranges: []netip.Prefix{p("10.0.0.0/24")}, used: []netip.Prefix{p("10.0.0.0/8")}, bits: 24},
		"the last of all addresses":     {ranges: []netip.Prefix{p("255.255.0.0/16")}, used: []netip.Prefix{p("255.255.0.0/16")}, bits: 24},
		"the one it had":                {ranges: []netip.Prefix{p("10.0.0.0/8")}, prefer: []netip.Prefix{p("10.7.7.0/24")}, bits: 24, want: "10.7.7.0/24"},
		"not the one it had, of others": {ranges: []netip.Prefix{p("10.0.0.0/8")}, prefer: []netip.Prefix{p("10.7.7.0/24")}, used: []netip.Prefix{p("10.7.7.0/24")}, bits: 24, want: "10.0.0.0/24"},
		"not the one it had, too large": {ranges: []netip.Prefix{p("10.0.0.0/8")}, prefer: []netip.Prefix{p("10.7.0.0/16")}, bits: 24, want: "10.0.0.0/24"},
		"IPv6":                          {ranges: []netip.Prefix{p("fd00::/32")}, used: []netip.Prefix{p("fd00::/64")}, bits: 64, want: "fd00:0:0:1::/64"},
	} {
		t.Run(name, func(t *testing.T) {
			var used blockSet
			for _, u := range x.used {
				used.add(u, "x")
			}
			got, ok := lowestFree(x.ranges, x.bits, &used, x.prefer)
			if ok != (x.want != "") || ok && got != p(x.want) {
				t.Errorf("got %v %v, want %q", got, ok, x.want)
			}
		})
	}
}

// Beside trying all blocks one by one.
func TestLowestFreeIsLowest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var used blockSet
		var list []netip.Prefix
		for range rapid.IntRange(0, 40).Draw(t, "used") {
			bits := rapid.IntRange(16, 30).Draw(t, "bits")
			a := netip.AddrFrom4([4]byte{10, 244, byte(rapid.IntRange(0, 255).Draw(t, "c")), byte(rapid.IntRange(0, 255).Draw(t, "d"))})
			u := netip.PrefixFrom(a, bits).Masked()
			used.add(u, "x")
			list = append(list, u)
		}
		size := rapid.IntRange(20, 28).Draw(t, "size")
		r := netip.MustParsePrefix("10.244.0.0/16")
		want := netip.Prefix{}
		for p, ok := first(r, size); ok; p, ok = after(p, r, size) {
			free := true
			for _, u := range list {
				free = free && !u.Overlaps(p)
			}
			if free {
				want = p
				break
			}
		}
		if got, ok := lowestFree([]netip.Prefix{r}, size, &used, nil); ok != want.IsValid() || got != want {
			t.Fatalf("got %v, want %v", got, want)
		}
	})
}

func TestBlockName(t *testing.T) {
	for cidr, want := range map[string]string{
		"10.244.1.0/24": "10-244-1-0-24", "fd00:10:244:1::/64": "fd00-10-244-1---64", "10.244.1.7/24": "10-244-1-0-24",
	} {
		if got := api.BlockName(netip.MustParsePrefix(cidr)); got != want {
			t.Errorf("%s: %s, want %s", cidr, got, want)
		}
	}
}
