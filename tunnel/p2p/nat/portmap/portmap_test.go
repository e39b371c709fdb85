package portmap

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"edgemesh/test/fair"
	"edgemesh/tunnel/p2p/base/endpoint"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	gate   = Gateway{Router: netip.MustParseAddr("192.168.1.1"), Local: netip.MustParseAddr("192.168.1.11")}
	public = netip.MustParseAddr("5.5.1.1")
)

// fake is a method of a router.
type fake struct {
	name     string
	external netip.Addr
	shift    uint16 // external less internal port
	err      error

	mu      sync.Mutex
	added   []uint16
	dropped []netip.AddrPort
}

func (f *fake) String() string { return f.name }

func (f *fake) add(_ context.Context, _ bool, internal, want uint16, d time.Duration) (netip.AddrPort, time.Duration, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.added = append(f.added, want)
	return netip.AddrPortFrom(f.external, internal+f.shift), d, f.err
}

func (f *fake) remove(_ context.Context, _ bool, _ uint16, external netip.AddrPort) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dropped = append(f.dropped, external)
	return nil
}

// run starts a mapper with one router that speaks these methods.
func run(t *testing.T, all ...method) (m *Mapper, changed <-chan struct{}, stop func()) {
	t.Helper()
	c := make(chan struct{}, 100)
	m = New(Config{Ports: func() (tcp, udp uint16) { return 4001, 4002 }, Log: slog.New(slog.DiscardHandler),
		Gateways: func() []Gateway { return []Gateway{gate} },
		Public:   func(a netip.Addr) bool { return !a.IsPrivate() },
		Changed:  func() { c <- struct{}{} },
		methods:  func(Gateway) []method { return all }})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); m.Run(ctx) }()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return m, c, stop
}

func await(t *testing.T, changed <-chan struct{}) {
	t.Helper()
	ctx, cancel := fair.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	select {
	case <-changed:
	case <-ctx.Done():
		t.Fatal("nothing changes")
	}
}

func TestMapperTriesAndGivesBack(t *testing.T) {
	deaf, good, spare := &fake{name: "one", err: errNotThere}, &fake{name: "two", external: public, shift: 7}, &fake{name: "three", external: public}
	m, changed, stop := run(t, deaf, good, spare)
	await(t, changed)
	want := []endpoint.Endpoint{{Addr: netip.AddrPortFrom(public, 4008)}, {UDP: true, Addr: netip.AddrPortFrom(public, 4009)}}
	if got := m.Endpoints(); !slices.Equal(got, want) {
		t.Errorf("mappings %v, want %v", got, want)
	}
	if s := m.String(); !strings.Contains(s, "port mapped by two at") || !strings.Contains(s, "tcp 5.5.1.1:4008") {
		t.Errorf("says: %s", s)
	}
	// Renewed, the same ports are asked for, of the method that worked.
	m.Again()
	fair.Eventually(t, 10*time.Second, "both ports are renewed", fair.True(func() bool {
		good.mu.Lock()
		defer good.mu.Unlock()
		return len(good.added) == 4
	}))
	stop()
	if got := good.added[2:]; !slices.Equal(got, []uint16{4009, 4008}) {
		t.Errorf("asked for %v again", got)
	}
	if len(deaf.added) != 1 || len(spare.added) != 0 {
		t.Errorf("the others were asked %d and %d times", len(deaf.added), len(spare.added))
	}
	slices.SortFunc(good.dropped, netip.AddrPort.Compare)
	if !slices.Equal(good.dropped, []netip.AddrPort{want[0].Addr, want[1].Addr}) {
		t.Errorf("given back: %v", good.dropped)
	}
	if got := m.Endpoints(); len(got) > 0 {
		t.Errorf("after the end: %v", got)
	}
}

// A router behind another NAT grants what is of no use.
func TestRouterBehindAnotherNAT(t *testing.T) {
	m, changed, _ := run(t, &fake{name: "one", external: netip.MustParseAddr("10.1.1.1")})
	await(t, changed)
	if got := m.Endpoints(); len(got) > 0 {
		t.Errorf("offered: %v", got)
	}
	if s := m.String(); !strings.Contains(s, "10.1.1.1 is not public: another NAT is in front of it") {
		t.Errorf("says: %s", s)
	}
}

func TestRouterRefuses(t *testing.T) {
	m, changed, _ := run(t, &fake{name: "one", err: errors.New("not authorized")}, &fake{name: "two", err: errNotThere})
	await(t, changed)
	if s := m.String(); !strings.Contains(s, "one: not authorized") || !strings.Contains(s, "two: no answer") {
		t.Errorf("says: %s", s)
	}
}

// pcpAnswer is what a router says to req.
func pcpAnswer(req []byte, result byte, external netip.AddrPort) []byte {
	b := slices.Clone(req)
	b[1] |= pcpResponse
	b[3] = result
	ip := external.Addr().As16()
	binary.BigEndian.PutUint32(b[4:], 600)
	binary.BigEndian.PutUint16(b[42:], external.Port())
	copy(b[44:], ip[:])
	return b
}

func TestPCP(t *testing.T) {
	p := newPCP(gate)
	req := p.request(true, 4002, netip.AddrPortFrom(netip.IPv4Unspecified(), 4002), lease)
	other := newPCP(gate).request(true, 4002, netip.AddrPortFrom(netip.IPv4Unspecified(), 4002), lease)
	external := netip.AddrPortFrom(public, 5002)
	got, d, err := parsePCP(pcpAnswer(req, 0, external), req)
	if err != nil || got != external || d != 10*time.Minute {
		t.Errorf("%v for %v, %v", got, d, err)
	}
	for name, c := range map[string]struct {
		b    []byte
		want string
	}{
		"empty":           {nil, "malformed"},
		"short":           {req[:20], "malformed"},
		"a request":       {req, "malformed"},
		"NAT-PMP":         {[]byte{0, 0x81, 0, 1}, "no answer"},
		"refused":         {pcpAnswer(req, 2, external), "not authorized"},
		"unknown refusal": {pcpAnswer(req, 99, external), "result 99"},
		"another host's":  {pcpAnswer(other, 0, external), "of another request"},
		"no port":         {pcpAnswer(req, 0, netip.AddrPortFrom(public, 0)), "no port"},
	} {
		if got, _, err := parsePCP(c.b, req); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, %v; want %q", name, got, err, c.want)
		}
	}
}

func FuzzParsePCP(f *testing.F) {
	req := newPCP(gate).request(false, 1, netip.AddrPortFrom(netip.IPv4Unspecified(), 1), lease)
	f.Add(pcpAnswer(req, 0, netip.AddrPortFrom(public, 1)))
	f.Add([]byte{2, 0x81})
	f.Fuzz(func(t *testing.T, b []byte) {
		copy(b[min(len(b), pcpNonce):], req[pcpNonce:]) // nonce, protocol, port are right
		if got, _, err := parsePCP(b, req); err == nil && !got.IsValid() {
			t.Errorf("%x gives %v", b, got)
		}
	})
}
