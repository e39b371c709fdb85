package nat64

import (
	"net/netip"
	"slices"
	"testing"
)

func TestEmbed(t *testing.T) {
	v4 := netip.MustParseAddr("192.0.2.33")
	for prefix, want := range map[string]string{ // RFC 6052, section 2.4
		"2001:db8::/32":             "2001:db8:c000:221::",
		"2001:db8:100::/40":         "2001:db8:1c0:2:21::",
		"2001:db8:122::/48":         "2001:db8:122:c000:2:2100::",
		"2001:db8:122:300::/56":     "2001:db8:122:3c0:0:221::",
		"2001:db8:122:344::/64":     "2001:db8:122:344:c0:2:2100::",
		"2001:db8:122:344::/96":     "2001:db8:122:344::192.0.2.33",
		"64:ff9b::/96":              "64:ff9b::192.0.2.33",
		"2001:db8:122:344:0:1::/96": "2001:db8:122:344:0:1:192.0.2.33",
	} {
		p := netip.MustParsePrefix(prefix)
		if got := Embed(p, v4); got != netip.MustParseAddr(want) {
			t.Errorf("%s: %s, want %s", prefix, got, want)
		}
		if got, ok := extract(p, netip.MustParseAddr(want)); !ok || got != v4 {
			t.Errorf("%s: %s has %s inside, want %s", prefix, want, got, v4)
		}
	}
	if got, ok := extract(netip.MustParsePrefix("2001:db8::/32"), netip.MustParseAddr("2001:db8:c000:221::1")); ok {
		t.Errorf("a host of the network is %s", got)
	}
}

func TestInside(t *testing.T) {
	learn(netip.MustParsePrefix("2a00:64::/48"))
	for a, want := range map[string]string{
		"64:ff9b::10.0.0.1":          "10.0.0.1",
		"64:ff9b::169.254.169.254":   "169.254.169.254",
		"64:ff9b:1::10.0.0.1":        "10.0.0.1",
		"64:ff9b:1:2:3:4:10.244.1.1": "10.244.1.1",
		"2a00:64:0:a00:0:100::":      "10.0.0.1",
		"2a00:64:0:a00:0:100::7":     "2a00:64:0:a00:0:100::7",
		"::ffff:10.0.0.1":            "10.0.0.1",
		"10.0.0.1":                   "10.0.0.1",
		"2001:db8::10.0.0.1":         "2001:db8::10.0.0.1",
		"64:ff9a::10.0.0.1":          "64:ff9a::10.0.0.1",
		"fe80::1%eth0":               "fe80::1%eth0",
	} {
		if got := Inside(netip.MustParseAddr(a)); got != netip.MustParseAddr(want) {
			t.Errorf("%s leads to %s, want %s", a, got, want)
		}
	}
	for i := range 3 * mostKnown {
		learn(netip.PrefixFrom(netip.AddrFrom16([16]byte{0x2a, 1, byte(i)}), 96))
	}
	if n := len(*known.Load()); n != mostKnown {
		t.Errorf("%d prefixes are known, want %d", n, mostKnown)
	}
}

// Behind's prefixes hold what Inside finds v4's hosts in, and nothing else.
func TestBehind(t *testing.T) {
	old := known.Load()
	defer known.Store(old)
	known.Store(nil)
	learned := []string{"2a00:32::/32", "2a00:40:100::/40", "2a00:48::/48", "2a00:56:1:100::/56", "2a00:64::/64", "2a00:96::/96"}
	for _, p := range learned {
		learn(netip.MustParsePrefix(p))
	}
	for _, v4 := range []string{"10.0.0.0/8", "100.64.0.0/10", "192.0.2.33/32", "0.0.0.0/0", "172.16.0.0/12"} {
		p := netip.MustParsePrefix(v4)
		behind := Behind(p)
		for i, at := range through() {
			for _, a := range []string{"10.0.0.1", "10.255.255.255", "100.64.0.1", "100.127.9.9", "100.128.0.1", "192.0.2.33", "192.0.2.34", "172.31.1.1", "172.32.1.1"} {
				host := netip.MustParseAddr(a)
				if got := behind[i].Contains(Embed(at, host)); got != p.Contains(host) {
					t.Errorf("%s behind %s: %s has %s: %v", v4, at, behind[i], a, got)
				}
			}
		}
		if len(behind) != 1+len(learned) {
			t.Errorf("%v", behind)
		}
	}
}

func TestByNames(t *testing.T) {
	for answer, want := range map[string]string{
		"64:ff9b::192.0.0.170":               "64:ff9b::/96",
		"2001:db8:122:344::192.0.0.171":      "2001:db8:122:344::/96",
		"2001:db8:122:344:c0:0:aa00:0":       "2001:db8:122:344::/64",
		"2001:db8:c000:aa::":                 "2001:db8::/32",
		"2001:db8:c000:aa::192.0.0.170":      "", // at two places
		"2001:db8::1":                        "",
		"::ffff:192.0.0.170":                 "",
		"192.0.0.170":                        "",
		"2001:db8:122:344:ff00::192.0.0.170": "", // octet 8
	} {
		var got string
		for _, p := range byNames([]netip.Addr{netip.MustParseAddr(answer)}) {
			if usable(p, nil) {
				got += p.String()
			}
		}
		if got != want {
			t.Errorf("%s says %q, want %q", answer, got, want)
		}
	}
	own := []netip.Addr{netip.MustParseAddr("2001:db8:122:344::5")}
	for _, p := range []string{"2001:db8:122:344::/96", "2001:db8::/32", "fe80::/96", "ff02::/96", "::/96", "2001:db8:1::/72"} {
		if usable(netip.MustParsePrefix(p), own) {
			t.Errorf("%s is used", p)
		}
	}
}

func TestPublic(t *testing.T) {
	for a, want := range map[string]bool{"5.5.1.1": true, "10.96.0.1": false, "100.64.0.1": false, "127.0.0.1": false, "169.254.1.1": false,
		"192.0.0.170": false, "0.1.2.3": false, "224.0.0.1": false, "255.255.255.255": false, "2001:db8::1": false} {
		if got := public(netip.MustParseAddr(a)); got != want {
			t.Errorf("%s: %v, want %v", a, got, want)
		}
	}
}

// advertisement is a router's, with options.
func advertisement(options ...[]byte) []byte {
	return slices.Concat(append([][]byte{append([]byte{134}, make([]byte, raHeader-1)...)}, options...)...)
}

// pref64 is the option with the first 96 bits of an address.
func pref64(scaled uint16, a string) []byte {
	b := netip.MustParseAddr(a).As16()
	return append([]byte{optionPREF64, 2, byte(scaled >> 8), byte(scaled)}, b[:12]...)
}

func TestByRouter(t *testing.T) {
	mtu := []byte{5, 1, 0, 0, 0, 0, 5, 220}
	for what, x := range map[string]struct {
		message []byte
		want    string
	}{
		"one":             {advertisement(mtu, pref64(8, "64:ff9b::")), "[64:ff9b::/96]"},
		"each length":     {advertisement(pref64(8|1, "2001:db8:122:344::"), pref64(8|2, "2001:db8:122:300::"), pref64(8|3, "2001:db8:122::"), pref64(8|5, "2001:db8::")), "[2001:db8:122:344::/64 2001:db8:122:300::/56 2001:db8:122::/48 2001:db8::/32]"},
		"no longer there": {advertisement(pref64(0, "64:ff9b::")), "[]"},
		"unknown length":  {advertisement(pref64(8|6, "64:ff9b::")), "[]"},
		"cut":             {advertisement(pref64(8, "64:ff9b::")[:12]), "[]"},
		"empty option":    {advertisement([]byte{optionPREF64, 0, 0, 8, 0, 0, 0, 0}), "[]"},
		"other message":   {append([]byte{136}, advertisement(pref64(8, "64:ff9b::"))[1:]...), "[]"},
		"short":           {[]byte{134, 0, 0}, "[]"},
		"nothing":         {nil, "[]"},
	} {
		if got, gone := byRouter(x.message); strings(got) != x.want || len(gone) > 0 != (what == "no longer there") {
			t.Errorf("%s: %v, without %v, want %s", what, got, gone, x.want)
		}
	}
	var many [][]byte
	for range 100 {
		many = append(many, pref64(8, "64:ff9b::"))
	}
	if got, _ := byRouter(advertisement(many...)); len(got) != mostOptions {
		t.Errorf("%d prefixes of one message, want %d", len(got), mostOptions)
	}
}

func strings(all []netip.Prefix) string {
	out := "["
	for i, p := range all {
		if i > 0 {
			out += " "
		}
		out += p.String()
	}
	return out + "]"
}

func FuzzByRouter(f *testing.F) {
	f.Add(advertisement(pref64(8, "64:ff9b::")))
	f.Add(advertisement([]byte{1, 255}))
	f.Fuzz(func(t *testing.T, b []byte) {
		there, gone := byRouter(b)
		for _, p := range append(there, gone...) {
			if p != p.Masked() || !slices.Contains(lengths[:], p.Bits()) {
				t.Errorf("%v", p)
			}
		}
	})
}
