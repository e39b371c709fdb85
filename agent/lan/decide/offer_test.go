package decide

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/wording/wordingtest"
)

func addr(a string, bits int) Address {
	ip := netip.MustParseAddr(a)
	mac := MAC{2, 0, 0, 0, 0, ip.AsSlice()[len(ip.AsSlice())-1]}
	return Address{Addr: ip, Bits: bits, MTU: 1500, MAC: mac}
}

func goodOffer(addrs ...Address) Offer {
	return Offer{Version: 1, Secret: NewSecret(), Addrs: addrs, ProbePort: 5211, VXLANPort: 5210}
}

func TestOfferOverTheWire(t *testing.T) {
	want := goodOffer(addr("192.168.1.11", 24), addr("fd99::11", 64))
	want.NoVXLAN, want.Round = "lan.vxlan is false", 3
	var b bytes.Buffer
	if err := WriteOffer(&b, want); err != nil {
		t.Fatal(err)
	}
	whole := b.Bytes()
	got, err := ReadOffer(bytes.NewReader(whole))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	for n := range whole {
		if _, err := ReadOffer(bytes.NewReader(whole[:n])); err == nil {
			t.Fatalf("the first %d of %d bytes are an offer", n, len(whole))
		}
	}
	if _, err := ReadOffer(bytes.NewReader(binary.BigEndian.AppendUint32(nil, maxOffer+1))); !errors.Is(err, ErrBadOffer) {
		t.Errorf("an offer that is too large: %v", err)
	}
}

func TestBadOffers(t *testing.T) {
	for name, change := range map[string]func(*Offer){
		"version":          func(o *Offer) { o.Version = 2 },
		"short secret":     func(o *Offer) { o.Secret = o.Secret[1:] },
		"public address":   func(o *Offer) { o.Addrs[0].Addr = netip.MustParseAddr("5.5.5.5") },
		"loopback":         func(o *Offer) { o.Addrs[0].Addr = netip.MustParseAddr("127.0.0.1") },
		"link-local":       func(o *Offer) { o.Addrs[0].Addr = netip.MustParseAddr("169.254.1.1") },
		"carrier NAT":      func(o *Offer) { o.Addrs[0].Addr = netip.MustParseAddr("100.64.1.1") },
		"no prefix":        func(o *Offer) { o.Addrs[0].Bits = 0 },
		"prefix too long":  func(o *Offer) { o.Addrs[0].Bits = 33 },
		"negative MTU":     func(o *Offer) { o.Addrs[0].MTU = -1 },
		"negative round":   func(o *Offer) { o.Round = -1 },
		"no port":          func(o *Offer) { o.ProbePort = 0 },
		"endless reason":   func(o *Offer) { o.NoNative = strings.Repeat("x", 1000) },
		"zone":             func(o *Offer) { o.Addrs[0].Addr = netip.MustParseAddr("fd99::1%eth0") }, // no prefix contains it
		"multicast MAC":    func(o *Offer) { o.Addrs[0].MAC = MAC{1, 0, 0x5e} },
		"zero address":     func(o *Offer) { o.Addrs[0].Addr = netip.Addr{} },
		"mapped IPv4":      func(o *Offer) { o.Addrs[0].Addr = netip.MustParseAddr("::ffff:192.168.1.1") },
		"public after all": func(o *Offer) { o.Addrs = append(o.Addrs, Address{Addr: netip.MustParseAddr("2001:db8::1"), Bits: 64}) },
	} {
		o := goodOffer(addr("192.168.1.11", 24))
		change(&o)
		var b bytes.Buffer
		if err := WriteOffer(&b, o); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadOffer(&b); !errors.Is(err, ErrBadOffer) {
			t.Errorf("%s: %v", name, err)
		}
	}
	many := goodOffer()
	for i := range 100 {
		many.Addrs = append(many.Addrs, addr(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}).String(), 24))
	}
	var b bytes.Buffer
	if err := WriteOffer(&b, many); err != nil {
		t.Fatal(err)
	}
	if o, err := ReadOffer(&b); err != nil || len(o.Addrs) != maxAddrs {
		t.Errorf("%d addresses of 100: %v", len(o.Addrs), err)
	}
}

func FuzzParseOffer(f *testing.F) {
	var b bytes.Buffer
	if err := WriteOffer(&b, goodOffer(addr("10.1.2.3", 8))); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes()[4:])
	f.Add([]byte(`{"version":1,"addrs":[{"addr":"","bits":-1,"mac":"00"}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		o, err := parseOffer(b)
		if err != nil {
			return
		}
		for _, a := range o.Addrs {
			if !mesh.PrivateUnderlay(a.Addr) {
				t.Errorf("address %s", a.Addr)
			}
		}
		candidates(o, goodOffer(addr("10.1.2.4", 8)), nil, true, o.Round, true, true)
	})
}

func TestSessionKeys(t *testing.T) {
	a, b := goodOffer(), goodOffer()
	initiator, responder := newSession(a, b, "A", "B", true), newSession(a, b, "A", "B", false)
	if initiator.id != responder.id || !bytes.Equal(initiator.out, responder.in) || !bytes.Equal(initiator.in, responder.out) {
		t.Error("the two sides have different keys")
	}
	if bytes.Equal(initiator.in, initiator.out) {
		t.Error("one key for both directions")
	}
	for name, other := range map[string]*session{
		"secret":    newSession(a, goodOffer(), "A", "B", true),
		"peer":      newSession(a, b, "A", "C", true),
		"initiator": newSession(b, a, "B", "A", true),
	} {
		if bytes.Equal(other.out, initiator.out) || other.id == initiator.id {
			t.Errorf("another %s, the same key", name)
		}
	}
}

func TestProbePacket(t *testing.T) {
	key := NewSecret()
	want := Message{typ: typeRequest, flags: flagBusy, slot: 2, session: 1 << 60, seq: 7}
	for _, size := range []int{0, 100, 1500 - headers(false), 1450 - headers(true)} {
		b := want.seal(key, size)
		if len(b) != max(size, probeHeader+probeMAC) {
			t.Errorf("%d bytes, want %d", len(b), size)
		}
		got, err := Parse(b)
		if err != nil || got != want || !authentic(key, b) {
			t.Fatalf("got %+v, %v", got, err)
		}
		for i := range b {
			b[i] ^= 1
			if m, err := Parse(b); err == nil && authentic(key, b) {
				t.Fatalf("byte %d changed, and it is authentic: %+v", i, m)
			}
			b[i] ^= 1
		}
		if authentic(NewSecret(), b) {
			t.Error("authentic with another key")
		}
	}
}

func FuzzOpenProbe(f *testing.F) {
	key := NewSecret()
	f.Add(Message{typ: typeAnswer, slot: 1, session: 3, seq: 9}.seal(NewSecret(), 64))
	f.Add([]byte(probeMagic))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Parse(b)
		if err != nil {
			return
		}
		if authentic(key, b) {
			t.Errorf("forged: %+v", m)
		}
	})
}

// An offer's reasons reach status and doctor of this node.
func TestOfferOfALiar(t *testing.T) {
	o := goodOffer(addr("192.168.1.11", 24))
	o.NoNative, o.NoVXLAN = wordingtest.Hostile()[:200], "\u202ex\x1b[2J"
	var b bytes.Buffer
	if err := WriteOffer(&b, o); err != nil {
		t.Fatal(err)
	}
	got, err := ReadOffer(&b)
	if err != nil {
		t.Fatal(err)
	}
	if wordingtest.Check(t, [2]string{got.NoNative, got.NoVXLAN}, maxReason) != 2 {
		t.Errorf("%q, %q", got.NoNative, got.NoVXLAN)
	}
}
