package resolve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"edgemesh/test/nameserver"
)

const name = "relay.example.org"

var (
	a4   = netip.MustParseAddr("192.0.2.1")
	a6   = netip.MustParseAddr("2001:db8::1")
	both = []netip.Addr{a4, a6}
)

// serve runs a name server.
func serve(t *testing.T, s *nameserver.Server) (at string) {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(c) }()
	t.Cleanup(func() {
		c.Close()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return c.LocalAddr().String()
}

// silent is where a name server was.
func silent(t *testing.T) string {
	t.Helper()
	return serve(t, &nameserver.Server{A: nameserver.Fault{Silent: true}, AAAA: nameserver.Fault{Silent: true}})
}

func names(t *testing.T, file string, servers ...string) *Names {
	t.Helper()
	n := New(Config{File: file})
	n.servers = func() []string { return servers }
	t.Cleanup(n.Close)
	return n
}

// tries notes when each address is tried; those in good answer.
type tries struct {
	good []netip.Addr

	mu    sync.Mutex
	began time.Time
	at    map[netip.Addr]time.Duration
	order []netip.Addr
}

func newTries(good ...netip.Addr) *tries {
	return &tries{good: good, began: time.Now(), at: make(map[netip.Addr]time.Duration)}
}

func (x *tries) try(_ context.Context, a netip.Addr) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.at[a] = time.Since(x.began)
	x.order = append(x.order, a)
	if slices.Contains(x.good, a) {
		return nil
	}
	return errors.New("refused")
}

// Each family is tried as soon as its own answer is there, from whichever server.
func TestHalfAnAnswer(t *testing.T) {
	t.Parallel()
	never, late := nameserver.Fault{Silent: true}, nameserver.Fault{Late: 5 * time.Second}
	broken := nameserver.Fault{Code: dnsmessage.RCodeServerFailure}
	for what, x := range map[string]struct {
		servers []*nameserver.Server
		want    netip.Addr
		least   time.Duration
		within  time.Duration
	}{
		"AAAA never":          {[]*nameserver.Server{{AAAA: never}}, a4, resolutionDelay, time.Second},
		"AAAA after 5 s":      {[]*nameserver.Server{{AAAA: late}}, a4, resolutionDelay, time.Second},
		"A never":             {[]*nameserver.Server{{A: never}}, a6, 0, 500 * time.Millisecond},
		"AAAA fails":          {[]*nameserver.Server{{AAAA: broken}}, a4, 0, 500 * time.Millisecond},
		"first server dead":   {[]*nameserver.Server{{A: never, AAAA: never}, {}}, a4, silence, 2 * time.Second},
		"two servers dead":    {[]*nameserver.Server{{A: never, AAAA: never}, {A: never, AAAA: never}, {}}, a4, 2 * silence, 4 * time.Second},
		"first server broken": {[]*nameserver.Server{{A: broken, AAAA: broken}, {}}, a4, 0, 500 * time.Millisecond},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			var at []string
			for _, s := range x.servers {
				s.Addrs = both
				at = append(at, serve(t, s))
			}
			got := newTries(x.want)
			if err := names(t, "", at...).Each(t.Context(), name, Both, got.try); err != nil {
				t.Fatal(err)
			}
			if took, ok := got.at[x.want]; !ok || took < x.least || took > x.within {
				t.Errorf("tried %v after %v, want %v after %v to %v", got.order, took, x.want, x.least, x.within)
			}
		})
	}
}

// A name server that never answers holds no attempt up for long, and its answer is there at a later one.
func TestLateAnswerServesTheNextAttempt(t *testing.T) {
	t.Parallel()
	s := &nameserver.Server{Addrs: both, AAAA: nameserver.Fault{Late: 3 * time.Second}}
	n := names(t, "", serve(t, s))
	first := newTries()
	err := n.Each(t.Context(), name, Both, first.try)
	if took := time.Since(first.began); err == nil || took > 2*time.Second || !slices.Equal(first.order, []netip.Addr{a4}) {
		t.Fatalf("after %v tried %v: %v", took, first.order, err)
	}
	for deadline := time.Now().Add(6 * time.Second); ; {
		got := newTries(a6)
		if err := n.Each(t.Context(), name, Both, got.try); err == nil && slices.Contains(got.order, a6) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the late answer was never used: %v", got.order)
		}
	}
}

// A server that always takes longer than package net waits is heard nevertheless.
func TestSlowServer(t *testing.T) {
	t.Parallel()
	late := nameserver.Fault{Late: 7 * time.Second}
	n := names(t, "", serve(t, &nameserver.Server{Addrs: both, A: late, AAAA: late}))
	if got, err := n.Lookup(t.Context(), name, Both); err != nil || !slices.Contains(got, a6) {
		t.Error(got, err)
	}
}

// A Dialer's connection is no proof of who answers: its address is kept once the host has been recognized.
func TestConnectionsAreNotKept(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	n := names(t, filepath.Join(t.TempDir(), "names.json"), serve(t, &nameserver.Server{Addrs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}}))
	c, err := n.Dialer(new(net.Dialer).DialContext)(t.Context(), "tcp", net.JoinHostPort(name, port))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := n.kept.get(absolute(name), Both); len(got) > 0 {
		t.Errorf("%v is kept before it has answered", got)
	}
	n.Answered(c.RemoteAddr())
	if got := n.kept.get(absolute(name), Both); len(got) != 1 {
		t.Errorf("%v is kept after it has answered", got)
	}
}

// Names that search lists complete, as those of Services, stay as they are.
func TestAbsolute(t *testing.T) {
	for host, want := range map[string]string{"Relay.example.org": name + ".", "api.": "api.", "api": "api", "kubernetes.default.svc": "kubernetes.default.svc"} {
		if got := absolute(host); got != want {
			t.Errorf("%s: %s, want %s", host, got, want)
		}
	}
}

// What has worked is tried beside what name servers say, and outlasts them and this process.
func TestKept(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "names.json")
	liar := netip.MustParseAddr("198.51.100.66")
	n := names(t, file)
	n.Worked(name, a4)
	n.Worked("192.0.2.9", a4) // no name
	if b, err := os.ReadFile(file); err != nil || string(b) != `{"relay.example.org.":["192.0.2.1"]}` {
		t.Fatalf("%s: %v", b, err)
	}
	var crowd []netip.Addr
	for i := range 250 { // and 50 of IPv6: more than one message without EDNS would carry
		crowd = append(crowd, netip.AddrFrom4([4]byte{198, 51, 100, byte(i)}))
	}
	for what, s := range map[string]*nameserver.Server{
		"dead":                {A: nameserver.Fault{Silent: true}, AAAA: nameserver.Fault{Silent: true}},
		"NXDOMAIN for all":    {Names: []string{"none"}},
		"its own address":     {Addrs: []netip.Addr{liar}},
		"addresses of no use": {Addrs: []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified(), netip.MustParseAddr("224.0.0.1")}},
		"many addresses":      {Addrs: crowd[:80]},
		"a loop":              {Loop: true},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			got := newTries(a4)
			if err := names(t, file, serve(t, s)).Each(t.Context(), name, Both, got.try); err != nil {
				t.Fatal(err)
			}
			if took := got.at[a4]; got.order[len(got.order)-1] != a4 || took > 2*time.Second || len(got.order) > mostAddrs+1 {
				t.Errorf("tried %v, the good one after %v", got.order, took)
			}
		})
	}
}

// Addresses that work make room for themselves, and a file that is broken is as good as none.
func TestKeptIsBounded(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "names.json")
	n := names(t, file)
	for i := range 2 * maxKept {
		n.Worked(name, netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}))
	}
	got := names(t, file).kept.get(absolute(name), Both)
	if len(got) != maxKept || got[0] != netip.MustParseAddr("192.0.2.7") {
		t.Error(got)
	}
	for i := range 2 * maxNames {
		n.Worked(fmt.Sprintf("host%d.example.org", i), a4)
	}
	if len(names(t, file).kept.of) != maxNames {
		t.Error(len(names(t, file).kept.of))
	}
	if err := os.WriteFile(file, []byte(`{"relay`), 0o600); err != nil {
		t.Fatal(err)
	}
	n = names(t, file)
	n.Worked(name, a6)
	if got := names(t, file).kept.get(absolute(name), V6); !slices.Equal(got, []netip.Addr{a6}) {
		t.Error(got)
	}
}

// Without an answer the error says which server gave none, and that comes within the bound of a lookup.
func TestNoAnswer(t *testing.T) {
	t.Parallel()
	a, b := silent(t), silent(t)
	began := time.Now()
	_, err := names(t, "", a, b).Lookup(t.Context(), name, Both)
	var failed *net.DNSError
	if !errors.As(err, &failed) || !failed.IsTimeout {
		t.Errorf("error %v", err)
	}
	if took := time.Since(began); took > walk+time.Second {
		t.Errorf("after %v", took)
	}
	soon, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := names(t, "", a).Lookup(soon, name, Both); !errors.As(err, &failed) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("who cannot wait has %v", err)
	}
	if _, err := names(t, "", serve(t, &nameserver.Server{Names: []string{"none"}})).Lookup(t.Context(), name, Both); err == nil || err.Error() != "lookup relay.example.org: no such host" {
		t.Errorf("error %v", err)
	}
}

// A site without faults has one query of each family, for all addresses of a relay, and what is dialed is what it says.
func TestPlain(t *testing.T) {
	t.Parallel()
	s := &nameserver.Server{Addrs: both, Names: []string{name}}
	file := filepath.Join(t.TempDir(), "names.json")
	n := names(t, file, serve(t, s))
	n.Worked(name, a4)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			got := newTries(a4, a6)
			if err := n.Each(t.Context(), name, Both, got.try); err != nil || len(got.order) > 2 {
				t.Errorf("tried %v: %v", got.order, err)
			}
		})
	}
	wg.Wait()
	for f, want := range map[Families]netip.Addr{V4: a4, V6: a6} {
		if got, err := n.Lookup(t.Context(), name, f); err != nil || !slices.Equal(got, []netip.Addr{want}) {
			t.Error(got, err)
		}
	}
	if q := s.Queries.Load(); q != 2 {
		t.Errorf("%d queries", q)
	}
}

// The first connection counts; the address of another is not dialed while the first has its chance.
func TestDialer(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	var mu sync.Mutex
	var dialed []string
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		mu.Lock()
		dialed = append(dialed, address)
		mu.Unlock()
		var d net.Dialer
		return d.DialContext(ctx, network, address)
	}
	n := names(t, "", serve(t, &nameserver.Server{Addrs: []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")}}))
	c, err := n.Dialer(dial)(t.Context(), "tcp", net.JoinHostPort(name, port))
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if len(dialed) != 1 {
		t.Error(dialed)
	}
	l.Close()
	if c, err := n.Dialer(dial)(t.Context(), "tcp", net.JoinHostPort(name, port)); err == nil || c != nil || len(dialed) != 3 {
		t.Error(c, err, dialed)
	}
}

// The servers of now are asked: those of the host before the copy that a container has, and those that come during a lookup.
func TestServersOfNow(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write := func(file, server string) {
		t.Helper()
		file = filepath.Join(root, file)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte("# a comment\nsearch example.org\nnameserver "+server+"\nnameserver "+server+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	check := func(want ...string) {
		t.Helper()
		if got := servers(root); len(got) < len(want) || !slices.Equal(got[:len(want)], want) {
			t.Errorf("%v, want %v first", got, want)
		}
	}
	if len(servers(root)) == 0 {
		t.Error("no server")
	}
	write(confFile, "192.0.2.53")
	check("192.0.2.53:53")
	write(managed[0], "fe80::1%eth0")
	check("192.0.2.53:53", "[fe80::1%eth0]:53")
	if outdated(root) {
		t.Error("outdated while the host's file is the mounted one")
	}
	write("new", "192.0.2.54") // as network managers do
	if err := os.Rename(filepath.Join(root, "new"), filepath.Join(root, managed[0])); err != nil {
		t.Fatal(err)
	}
	check("192.0.2.53:53", "192.0.2.54:53")
	write(managed[0], "fe80::1%eth0")

	// A mount of one file is like a descriptor: it leads to the old file after that was replaced.
	old, err := os.Open(filepath.Join(root, confFile))
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	if err := os.Remove(filepath.Join(root, confFile)); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(fmt.Sprintf("/proc/self/fd/%d", old.Fd()), filepath.Join(root, confFile)); err != nil {
		t.Fatal(err)
	}
	check("[fe80::1%eth0]:53", "192.0.2.53:53")
	if outdated(root) {
		t.Error("outdated though NetworkManager says what holds")
	}
	if err := os.Remove(filepath.Join(root, managed[0])); err != nil {
		t.Fatal(err)
	}
	if !outdated(root) || outdated("") {
		t.Error("not outdated though the host has replaced its file")
	}

	n := New(Config{})
	t.Cleanup(n.Close)
	var mu sync.Mutex
	now := []string{silent(t)}
	n.servers = func() []string { mu.Lock(); defer mu.Unlock(); return now }
	right := serve(t, &nameserver.Server{Addrs: both})
	time.AfterFunc(silence/2, func() { mu.Lock(); defer mu.Unlock(); now = []string{right} })
	began := time.Now()
	if got, err := n.Lookup(t.Context(), name, V4); err != nil || time.Since(began) > 3*time.Second {
		t.Error(got, err, time.Since(began))
	}
}

// A connection proves nothing of the NAT64 that led to it: anybody may answer behind a forged prefix. What the host has proved does.
func TestAnsweredProvesNAT64(t *testing.T) {
	n := New(Config{})
	defer n.Close()
	proved := 0
	n.dials(a4, "443", dialed{name, func() { proved++ }})
	if proved > 0 {
		t.Error("proved by a connection")
	}
	at := &net.TCPAddr{IP: net.ParseIP("64:ff9b::192.0.2.1"), Port: 443}
	n.Answered(at)
	n.Answered(at)
	if proved != 1 {
		t.Errorf("proved %d times", proved)
	}
}
