package p2p

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/tunnel/p2p/endpoint"
	"edgemesh/tunnel/p2p/ladder"
)

func TestProbeFrame(t *testing.T) {
	for _, f := range []probeFrame{
		{typ: probeRequest, seq: 1, token: 2},
		{typ: probeAnswer, owned: true, seq: 1<<32 - 1, token: 1<<64 - 1, observed: ma.StringCast("/ip4/5.5.1.1/tcp/4001")},
		{typ: probeDrop, token: 7, observed: ma.StringCast("/ip6/2001:db8::1/udp/4001/quic-v1")},
	} {
		b := f.append([]byte("x"))[1:]
		got, err := readProbe(bytes.NewReader(b))
		if err != nil {
			t.Errorf("%+v: %v", f, err)
			continue
		}
		if fmt.Sprint(got) != fmt.Sprint(f) {
			t.Errorf("read %+v, want %+v", got, f)
		}
		for i := range b {
			if _, err := readProbe(bytes.NewReader(b[:i])); err == nil {
				t.Errorf("%+v: the first %d of %d bytes are a frame", f, i, len(b))
			}
		}
	}
	good := probeFrame{typ: probeRequest}.append(nil)
	for what, change := range map[string]func([]byte){
		"type 0":          func(b []byte) { b[2] = 0 },
		"type 5":          func(b []byte) { b[2] = 5 },
		"flag 2":          func(b []byte) { b[3] = 2 },
		"length too low":  func(b []byte) { b[1] = probeHeader - 1 },
		"length too high": func(b []byte) { b[0] = 2 },
	} {
		b := bytes.Clone(good)
		change(b)
		if _, err := readProbe(bytes.NewReader(append(b, make([]byte, 1000)...))); !errors.Is(err, errBadProbe) {
			t.Errorf("%s: error %v, want errBadProbe", what, err)
		}
	}
	bad := probeFrame{typ: probeRequest}.append(nil)
	bad[1] += 3
	if _, err := readProbe(bytes.NewReader(append(bad, 0xff, 0xff, 0xff))); !errors.Is(err, errBadProbe) {
		t.Errorf("bad address: error %v, want errBadProbe", err)
	}
}

func FuzzReadProbe(f *testing.F) {
	f.Add(probeFrame{typ: probeAnswer, owned: true, seq: 9, observed: ma.StringCast("/ip4/5.5.1.1/tcp/4001")}.append(nil))
	f.Add([]byte{0, 14})
	f.Fuzz(func(t *testing.T, b []byte) {
		frame, err := readProbe(bytes.NewReader(b))
		if err != nil {
			return
		}
		again, err := readProbe(bytes.NewReader(frame.append(nil)))
		if err != nil || fmt.Sprint(again) != fmt.Sprint(frame) {
			t.Errorf("%+v came back as %+v, %v", frame, again, err)
		}
	})
}

func TestOffer(t *testing.T) {
	var b bytes.Buffer
	sent := offer{Addrs: []string{"/ip4/5.5.1.1/tcp/4001", "/ip4/5.5.1.1/udp/4001/quic-v1"}, NAT: "no NAT", Want: []string{"tcp"}}
	if err := writeOffer(&b, sent); err != nil {
		t.Fatal(err)
	}
	got, eps, err := readOffer(&b)
	if err != nil || fmt.Sprint(got) != fmt.Sprint(sent) || len(eps) != 2 {
		t.Errorf("read %+v %v %v, want %+v", got, eps, err, sent)
	}
	// What cannot be dialed is left out.
	_, eps, err = readOffer(strings.NewReader(`{"addrs":["","/dns4/x/tcp/1","/ip4/5.5.1.1/tcp/0","/ip4/5.5.1.1/tcp/1","/ip4/5.5.1.1/tcp/1",` +
		`"/ip4/5.5.5.5/tcp/1/p2p-circuit","/ip4/1.2.3.4/udp/1"]}` + "\n"))
	if err != nil || len(eps) != 1 || eps[0].String() != "tcp 5.5.1.1:1" {
		t.Errorf("endpoints %v, %v; want tcp 5.5.1.1:1 only", eps, err)
	}
	var many []string
	for i := range 50 {
		many = append(many, fmt.Sprintf("/ip4/1.1.1.1/tcp/%d", i+1))
	}
	b.Reset()
	if err := writeOffer(&b, offer{Addrs: many}); err != nil {
		t.Fatal(err)
	}
	if _, eps, err = readOffer(&b); err != nil || len(eps) != maxOffer {
		t.Errorf("%d endpoints of 50, %v; want %d", len(eps), err, maxOffer)
	}
	for what, in := range map[string]string{
		"too long": strings.Repeat(" ", maxOfferBytes+1) + "{}\n", "no end": "{}", "no JSON": "hello\n", "empty": "\n", "array": "[]\n",
	} {
		if _, _, err := readOffer(strings.NewReader(in)); err == nil {
			t.Errorf("%s: accepted", what)
		}
	}
}

func FuzzReadOffer(f *testing.F) {
	f.Add([]byte(`{"addrs":["/ip4/5.5.1.1/tcp/4001"],"nat":"x","want":["tcp"]}` + "\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		o, eps, err := readOffer(bytes.NewReader(b))
		if err != nil {
			return
		}
		if len(eps) > maxOffer || len(o.NAT) > 64 {
			t.Errorf("%d endpoints, NAT %q", len(eps), o.NAT)
		}
		for _, e := range eps {
			if got, ok := endpoint.Parse(e.Multiaddr()); !ok || got != e {
				t.Errorf("%v is not the endpoint of its own address", e)
			}
		}
	})
}

func ep(s string) endpoint.Endpoint {
	proto, addr, _ := strings.Cut(s, " ")
	return endpoint.Endpoint{UDP: proto == "udp", Addr: netip.MustParseAddrPort(addr)}
}

func eps(ss ...string) (out []endpoint.Endpoint) {
	for _, s := range ss {
		out = append(out, ep(s))
	}
	return out
}

func TestParseEndpoint(t *testing.T) {
	for in, want := range map[string]string{
		"/ip4/1.2.3.4/tcp/5":             "tcp 1.2.3.4:5",
		"/ip6/2001:db8::1/udp/5/quic-v1": "udp [2001:db8::1]:5",
		"/ip4/1.2.3.4/tcp/5/p2p/12D3KooWMWsmWt1mKg4r79VRFm9KrEfwgqJ4YHJ3LJVUYfCbB48m": "tcp 1.2.3.4:5",
		"/ip6/::ffff:1.2.3.4/tcp/5":               "tcp 1.2.3.4:5",
		"/ip4/1.2.3.4/udp/5":                      "",
		"/ip4/1.2.3.4/udp/5/quic-v1/webtransport": "",
		"/ip4/1.2.3.4/tcp/5/ws":                   "",
		"/dns4/example.org/tcp/5":                 "",
		"/memory/1":                               "",
		"/ip4/1.2.3.4":                            "",
		"/ip4/1.2.3.4/tcp/5/p2p/12D3KooWMWsmWt1mKg4r79VRFm9KrEfwgqJ4YHJ3LJVUYfCbB48m/p2p-circuit": "",
	} {
		e, ok := endpoint.Parse(ma.StringCast(in))
		got := ""
		if ok {
			got = e.String()
		}
		if got != want {
			t.Errorf("%s is %q, want %q", in, got, want)
		}
	}
}

func TestNATKind(t *testing.T) {
	local := eps("tcp 192.168.1.10:4001", "udp 192.168.1.10:4001", "tcp 5.5.1.1:4001", "udp 5.5.1.1:4001")
	for _, c := range []struct {
		seen      []endpoint.Endpoint
		symmetric bool
		want      ladder.NAT
	}{
		{nil, false, ladder.NATUnknown},
		{eps("tcp 5.5.1.1:4001", "udp 5.5.1.1:4001"), false, ladder.NATNone},
		{eps("tcp 9.9.9.9:4001", "udp 9.9.9.9:4001"), false, ladder.NATStable},
		{eps("tcp 9.9.9.9:4001", "udp 9.9.9.9:31234"), false, ladder.NATUnknown},
		{eps("udp 9.9.9.9:31234", "udp 9.9.9.9:31235"), true, ladder.NATRandom},
	} {
		if got := natKind(c.seen, local, c.symmetric); got != c.want {
			t.Errorf("seen at %v: %v, want %v", c.seen, got, c.want)
		}
	}
}

func TestListenEndpoints(t *testing.T) {
	listen := []ma.Multiaddr{ma.StringCast("/ip4/0.0.0.0/tcp/4001"), ma.StringCast("/ip6/::/udp/4001/quic-v1"), ma.StringCast("/ip4/10.0.0.1/tcp/5")}
	got := endpoint.Offered(listen, []netip.Addr{netip.MustParseAddr("192.168.1.10"), netip.MustParseAddr("2001:db8::1")})
	if want := eps("tcp 192.168.1.10:4001", "udp [2001:db8::1]:4001", "tcp 10.0.0.1:5"); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
