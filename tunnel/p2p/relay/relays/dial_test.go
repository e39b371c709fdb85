package relays

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/internal/proxy"
	"edgemesh/internal/resolve"
	"edgemesh/internal/wake"
	"edgemesh/internal/wording"
	"edgemesh/tunnel/p2p/base/conns"
	"edgemesh/tunnel/p2p/who/members"
)

// oneConn is a host whose only connection ends when a test says so.
type oneConn struct {
	host.Host
	net netOf
}

func (h *oneConn) Network() network.Network { return &h.net }

type netOf struct {
	network.Network
	ended bool
}

func (n *netOf) ConnsToPeer(peer.ID) []network.Conn {
	return []network.Conn{ends{tcpConn{ended: n.ended}, n}}
}

// tcpConn is a connection to a relay.
type tcpConn struct {
	network.Conn
	ended bool
}

func (c tcpConn) IsClosed() bool              { return c.ended }
func (tcpConn) LocalMultiaddr() ma.Multiaddr  { return ma.StringCast("/ip4/192.0.2.2/tcp/2") }
func (tcpConn) RemoteMultiaddr() ma.Multiaddr { return ma.StringCast("/ip4/192.0.2.1/tcp/443") }

// A transport that is dialed beside the only connection is not waited for once that has ended.
func TestLostBesideADial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &oneConn{}
		c := &client{common: &common{host: h, ctx: t.Context(), changed: &wake.All{}}, ctx: t.Context()}
		r := &round{c: c, results: make(chan dialed)} // of a dial that hangs
		got := make(chan error, 1)
		go func() { got <- r.first(true) }()
		synctest.Wait()
		c.changed.Broadcast() // something else has changed
		synctest.Wait()
		select {
		case err := <-got:
			t.Fatal("the dial was not waited for:", err)
		default:
		}
		h.net.ended = true
		c.changed.Broadcast()
		if err := <-got; !errors.Is(err, errLost) {
			t.Error(err)
		}
	})
}

// The errors of dials from several own addresses come as one, which is a list; what they say of a refusal stays.
func TestFailedFromSeveralAddresses(t *testing.T) {
	c := &client{common: &common{host: &oneConn{}, ctx: t.Context(), changed: &wake.All{}}, ctx: t.Context()}
	r := &round{c: c}
	to := ma.StringCast("/ip4/192.0.2.1/tcp/443")
	r.failed(dialed{to, wording.Join(fmt.Errorf("dial tcp4 a: %w", syscall.ENETUNREACH), context.DeadlineExceeded)})
	r.failed(dialed{to, conns.ErrRefused})
	if err := r.err(); !errors.Is(err, syscall.ENETUNREACH) || !errors.Is(err, conns.ErrRefused) || !strings.Contains(err.Error(), "membership list this node") {
		t.Error(err)
	}
}

// ends is a connection that takes its time to end.
type ends struct {
	tcpConn
	net *netOf
}

func (c ends) Close() error { time.Sleep(time.Second); c.net.ended = true; return nil } // sleep: in a bubble

// A relay that was left and is wanted again has no connection that is about to end.
func TestLeaveEndsConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &oneConn{}
		m := members.NewGater(members.NewView("self", members.Membership{}), members.Rules{})
		spawn := func(f func()) bool { go f(); return true }
		c := &client{common: &common{Config: Config{Members: m, Spawn: spawn}, host: h, ctx: t.Context()}, ctx: t.Context()}
		if c.leave(); !h.net.ended {
			t.Error("the connection has not ended")
		}
	})
}

// throughOnly is a Dialer whose proxy answers with cause for some time.
type throughOnly struct {
	Dialer
	start time.Time
	good  time.Duration // from then on it gives connections
	cause proxy.Cause
	hangs bool // the proxy is silent after its first answer
	asked int
}

func (d *throughOnly) Named(_ context.Context, a ma.Multiaddr) ma.Multiaddr { return a }
func (d *throughOnly) DialThrough(ctx context.Context, _ *url.URL, _ ma.Multiaddr, _ peer.ID) error {
	d.asked++
	switch {
	case time.Since(d.start) >= d.good:
		return nil
	case d.hangs && d.asked > 1:
		<-ctx.Done()
		return &proxy.Error{Cause: proxy.Silent, Err: ctx.Err()}
	}
	return &proxy.Error{Cause: d.cause}
}

// A proxy, or a relay behind it, that is restarting is asked again in the same round; what stays is not.
func TestProxyIsAskedAgain(t *testing.T) {
	const life = DialTimeout
	for name, x := range map[string]struct {
		throughOnly
		want proxy.Cause // "": a connection
		took time.Duration
		asks int
	}{
		"there":               {throughOnly{}, "", 0, 1},
		"starts":              {throughOnly{good: 2 * time.Second, cause: proxy.Unreachable}, "", 2 * time.Second, 9},
		"its target starts":   {throughOnly{good: 1500 * time.Millisecond, cause: proxy.Failed}, "", 2 * time.Second, 3},
		"its target restarts": {throughOnly{good: time.Second, cause: proxy.Cut}, "", time.Second, 2},
		"forbids":             {throughOnly{good: time.Hour, cause: proxy.Forbidden}, proxy.Forbidden, 0, 1},
		"another password":    {throughOnly{good: time.Hour, cause: proxy.Unauthorized}, proxy.Unauthorized, 0, 1},
		"never":               {throughOnly{good: time.Hour, cause: proxy.Cut}, proxy.Cut, life, 5},
		"then silent":         {throughOnly{good: time.Hour, cause: proxy.Failed, hangs: true}, proxy.Failed, life, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &x.throughOnly
				d.start = time.Now()
				r := &round{c: &client{common: &common{Config: Config{Dialer: d}}}}
				ctx, cancel := context.WithTimeout(t.Context(), life)
				defer cancel()
				err := r.insist(ctx, nil, ma.StringCast("/ip4/192.0.2.1/tcp/443"))
				var e *proxy.Error
				if errors.As(err, &e) != (x.want != "") || e != nil && e.Cause != x.want {
					t.Errorf("%v, want %q", err, x.want)
				}
				if took := time.Since(d.start); took != x.took || d.asked > x.asks {
					t.Errorf("asked %d times in %v, want at most %d in %v", d.asked, took, x.asks, x.took)
				}
			})
		})
	}
}

// Literals are dialed immediately, also where the lookup of another address, a /dnsaddr, never ends.
func TestLiteralsDoNotWaitForDNS(t *testing.T) {
	conf := ""
	for i := range 6 { // as many as are used, so that those of this host are not
		silent, err := net.ListenPacket("udp", fmt.Sprintf("127.0.83.%d:53", 1+i))
		if err != nil {
			t.Skip("no name server here: ", err)
		}
		defer silent.Close()
		conf += fmt.Sprintf("nameserver 127.0.83.%d\n", 1+i)
	}
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "etc/resolv.conf"), []byte(conf), 0o644); err != nil {
		t.Fatal(err)
	}
	names := resolve.New(resolve.Config{Root: root})
	defer names.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	literal := ma.StringCast("/ip4/192.0.2.1/tcp/4470")
	at := make(chan ma.Multiaddr, 8)
	r := &round{results: make(chan dialed, 8), over: make(chan struct{}),
		dial: func(_ context.Context, a ma.Multiaddr, _ peer.ID) error { at <- a; return errors.New("refused") },
		c: &client{ctx: ctx, info: peer.AddrInfo{ID: "relay", Addrs: []ma.Multiaddr{ma.StringCast("/dnsaddr/relay.example.org"), literal}},
			common: &common{ctx: ctx, Config: Config{Names: names, Spawn: func(f func()) bool { go f(); return true },
				Members: members.NewGater(members.NewView("self", members.Membership{Relays: []peer.AddrInfo{{ID: "relay"}}}), members.Rules{})}}}}
	r.run(func() { r.direct(ctx, there{}) })
	select {
	case a := <-at:
		if !a.Equal(literal) {
			t.Errorf("dialed %s", a)
		}
	case <-time.After(5 * time.Second):
		t.Error("the literal was not dialed while the lookup of the name had no answer")
	}
	cancel()
	r.dials.Wait()
}
