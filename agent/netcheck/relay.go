package netcheck

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	libp2ptls "github.com/libp2p/go-libp2p/p2p/security/tls"
	mss "github.com/multiformats/go-multistream"

	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/proxy"
	"edgemesh/internal/resolve"
	"edgemesh/internal/wording"
	"edgemesh/tunnel/p2p/base/stun"
	"edgemesh/tunnel/p2p/carrier/socket"
	"edgemesh/tunnel/p2p/who/identity"
)

// hello is what both sides of a libp2p connection say first (multistream-select 1.0.0).
const hello = "\x13/multistream/1.0.0\n"

// checker is one Run.
type checker struct {
	Config
	connect func(ctx context.Context, network, address string) (net.Conn, error)

	mu    sync.Mutex // a leaf
	proxy string     // HOST:PORT of the proxy that was used
}

// newChecker leaves out the mark where this process may not set one: only rules of the pod network match it, and every
// measurement would fail. end is to be called when all is done.
func newChecker(c Config) (k *checker, end func()) {
	if c.Mark != 0 && !mayMark(c.Mark) {
		c.Mark = 0
	}
	end = func() {}
	if c.Names == nil {
		c.Names = resolve.New(resolve.Config{Root: resolve.Mounted})
		end = c.Names.Close
	}
	d := net.Dialer{Control: socket.Control(c.Mark, false)}
	return &checker{Config: c, connect: c.Names.Dialer(d.DialContext)}, end
}

// mayMark tries it on a socket that sends nothing.
func mayMark(mark uint32) bool {
	l, err := (&net.ListenConfig{Control: socket.Control(mark, false)}).ListenPacket(context.Background(), "udp", "localhost:0")
	if err == nil {
		_ = l.Close()
	}
	return !errors.Is(err, fs.ErrPermission)
}

func (k *checker) proxyUsed() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.proxy
}

// relays tries all of them at the same time.
func (k *checker) relays(ctx context.Context) ([]Relay, *Clock) {
	out, clocks := make([]Relay, len(k.Relays)), make([]*Clock, len(k.Relays))
	var wg sync.WaitGroup
	for i, r := range k.Relays {
		wg.Go(func() { out[i], clocks[i] = k.relay(ctx, r) })
	}
	wg.Wait()
	for _, c := range clocks {
		if c != nil {
			return out, c
		}
	}
	return out, nil
}

// relay tries all addresses of one relay, and keeps the best answer of each transport.
func (k *checker) relay(ctx context.Context, r mesh.Relay) (Relay, *Clock) {
	out := Relay{PeerID: string(r.PeerID)}
	var clock *Clock
	var mu sync.Mutex // of the two above
	var wg sync.WaitGroup
	for _, t := range byVersion(targets(r.Addrs)) {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, queryTimeout)
			defer cancel()
			a := Answer{Addr: t.text}
			var at *Clock
			rtt, err := k.try(ctx, t, r.PeerID, &at)
			if err != nil && t.may {
				return
			}
			if err != nil {
				a.Error = wording.Foreign(err.Error(), 1<<10)
			} else {
				ms := float64(rtt.Microseconds()) / 1000
				a.RTTMs = &ms
			}
			mu.Lock()
			defer mu.Unlock()
			p := Probe{Family: t.family(), Transport: string(t.kind), Answer: a}
			if err != nil {
				p.Cause = causeOf(err)
			}
			out.Probes = append(out.Probes, p)
			if at != nil && clock == nil {
				at.Relay, clock = out.PeerID, at
			}
		})
	}
	wg.Wait()
	all := slices.Clone(out.Probes)
	out.Probes = slices.DeleteFunc(out.Probes, func(p Probe) bool { // the name has no such address, which is no fault where it has the other
		return p.Cause == NoName && slices.ContainsFunc(all, func(o Probe) bool { return o.Addr == p.Addr && o.Cause != NoName })
	})
	if !slices.ContainsFunc(out.Probes, func(p Probe) bool { return p.Answered() }) {
		out.Portal = k.portal(ctx, r)
	}
	for _, p := range out.Probes {
		best := map[kind]**Answer{tcp: &out.TCP, udp: &out.UDP, webSocket: &out.WS}[kind(p.Transport)]
		if *best == nil || p.better(**best) {
			*best = &p.Answer
		}
	}
	slices.SortFunc(out.Probes, func(a, b Probe) int {
		return cmp.Or(cmp.Compare(a.Transport, b.Transport), cmp.Compare(a.Family, b.Family), cmp.Compare(a.Addr, b.Addr))
	})
	return out, clock
}

func (a Answer) better(than Answer) bool {
	return a.RTTMs != nil && (than.RTTMs == nil || *a.RTTMs < *than.RTTMs)
}

// try measures one round trip. A WebSocket's server reports the time, too.
func (k *checker) try(ctx context.Context, t target, id mesh.PeerID, at **Clock) (time.Duration, error) {
	switch t.kind {
	case udp:
		return k.stun(ctx, t)
	case webSocket:
		rtt, err := k.upgrade(ctx, t)
		if err == nil {
			*at = k.clock(ctx, t)
		}
		return rtt, err
	}
	return k.multistream(ctx, t, id)
}

// dial connects by TCP, through the proxy if there is one for the target, and returns how long the last hop's answer took.
func (k *checker) dial(ctx context.Context, t target) (net.Conn, error) {
	u, err := k.Proxy.For(t.address())
	if err != nil {
		return nil, err
	}
	if u == nil {
		return k.connect(ctx, t.network(), t.address())
	}
	k.mu.Lock()
	k.proxy = u.Host
	k.mu.Unlock()
	return proxy.Connect(ctx, k.connect, u, t.address())
}

// multistream greets a libp2p host and measures its greeting. Its key is checked if that is wanted.
func (k *checker) multistream(ctx context.Context, t target, id mesh.PeerID) (time.Duration, error) {
	c, err := k.dial(ctx, t)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
	start := time.Now()
	if k.Prove {
		err := prove(ctx, c, id)
		return time.Since(start), err
	}
	if _, err := io.WriteString(c, hello); err != nil {
		return 0, fmt.Errorf("greet: %w", err)
	}
	answer := make([]byte, len(hello))
	if _, err := io.ReadFull(c, answer); err != nil {
		return 0, fmt.Errorf("connected, but nothing that speaks libp2p answers: %w", err)
	}
	if string(answer) != hello {
		return 0, errors.New("connected, but what answers is not a relay")
	}
	return time.Since(start), nil
}

// prove finishes a handshake, in which the other end shows the key of that peer ID. The key of this end is made for it.
func prove(ctx context.Context, c net.Conn, id mesh.PeerID) error {
	want, bad := peer.Decode(string(id))
	key, _, _ := crypto.GenerateEd25519Key(rand.Reader) // which does not fail
	own, err := identity.NewTLS(libp2ptls.ID, key, nil)
	if err = errors.Join(bad, err, mss.SelectProtoOrFail(libp2ptls.ID, c)); err != nil {
		return err
	}
	s, err := own.SecureOutbound(ctx, c, want)
	if err != nil {
		return fmt.Errorf("what answers does not show the key of %s: %w", id, err)
	}
	return s.Close()
}

// stun queries the relay for the address of a new socket.
func (k *checker) stun(ctx context.Context, t target) (time.Duration, error) {
	server, err := k.lookup(ctx, t)
	if err != nil {
		return 0, err
	}
	to, ended := k.Names.Via(ctx, server.Addr())
	defer func() { ended(err) }()
	server = netip.AddrPortFrom(to, server.Port())
	c, err := k.listen(ctx, server.Addr())
	if err != nil {
		return 0, err
	}
	defer c.Close()
	start := time.Now()
	_, err = stun.Query(ctx, c, server)
	return time.Since(start), err
}

// listen opens a UDP socket of dst's family.
func (k *checker) listen(ctx context.Context, dst netip.Addr) (net.PacketConn, error) {
	network := "udp6"
	if dst.Is4() {
		network = "udp4"
	}
	return (&net.ListenConfig{Control: socket.Control(k.Mark, false)}).ListenPacket(ctx, network, ":0")
}

// lookup is t's address.
func (k *checker) lookup(ctx context.Context, t target) (netip.AddrPort, error) {
	all, err := k.Names.Lookup(ctx, t.host, resolve.Family(t.network()))
	if err != nil {
		return netip.AddrPort{}, err
	}
	port, err := net.LookupPort("udp", t.port)
	if err != nil {
		return netip.AddrPort{}, err
	}
	return netip.AddrPortFrom(all[0], uint16(port)), nil
}

// request sends one to t, and says when it was sent. Whoever closes the answer's body closes the connection.
func (k *checker) request(ctx context.Context, t target, header http.Header) (resp *http.Response, sent time.Time, err error) {
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return k.dial(ctx, t) },
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}, DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10}
	u := &url.URL{Scheme: "http", Host: t.address(), Path: "/" + t.path}
	if t.tls {
		u.Scheme = "https"
	}
	trace := &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { sent = time.Now() }}
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, trace), http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, sent, err
	}
	req.Header = header
	refuse := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	resp, err = (&http.Client{Transport: tr, CheckRedirect: refuse}).Do(req)
	return resp, sent, err
}

// upgrade requests a WebSocket (RFC 6455, section 4.1), and measures the answer once connected.
func (k *checker) upgrade(ctx context.Context, t target) (time.Duration, error) {
	resp, sent, err := k.request(ctx, t, http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Version": {"13"},
		"Sec-Websocket-Key": {"ZWRnZW1lc2ggbmV0Y2hlYw=="}})
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusSwitchingProtocols {
		return 0, fmt.Errorf("no WebSocket there: the server answered %s", resp.Status)
	}
	return time.Since(sent), nil
}

// clock compares this host's clock with the date of a plain answer, which any HTTP server has (RFC 9110, section 6.6.1).
func (k *checker) clock(ctx context.Context, t target) *Clock {
	resp, sent, err := k.request(ctx, t, nil)
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	there, err := http.ParseTime(resp.Header.Get("Date"))
	if err != nil {
		return nil
	}
	half := time.Since(sent) / 2
	return &Clock{OffsetMs: sent.Add(half).Sub(there.Add(time.Second / 2)).Milliseconds()}
}
