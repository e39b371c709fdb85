package p2p

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/internal/wake"
	"edgemesh/test/fair"
	"edgemesh/test/relaytest"
	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/path/paths"
	"edgemesh/tunnel/p2p/path/peers"
	"edgemesh/tunnel/p2p/who/identity"
	"edgemesh/tunnel/p2p/who/members"
)

// The test binary runs itself inside namespaces, as a node or a relay, and talks
// to these processes in lines of JSON over stdin and stdout.

// sinkProto is served by nodes that discard what comes in.
const sinkProto protocol.ID = "/edgemesh/test-sink/1"

type roleConfig struct {
	Key     []byte
	Listen  []string
	Members map[string]string // name → peer ID
	Relays  map[string][]string
	WAN     []string // prefixes to treat as public
	Guess   bool     // ports of peers
	Many    int      // members beside Members
	Take    bool     // takes datagrams
	// Sees is what a relay says of where it sees members, instead of the truth; "" is what one of a former version says.
	Sees *string
	// Blocks, by peer ID, make the node a victim of Victim's attacks (hostile_test.go).
	Blocks map[string]string
	Victim string
}

type request struct {
	Cmd   string // call, ping, hold, status, blast, quit
	Peer  string
	Proto string
	Time  time.Duration
	// Of a hostile node.
	Packet  []byte
	Count   int
	Targets []string
}

type reply struct {
	Err    string
	Path   paths.Path
	Took   time.Duration
	Bytes  uint64
	Status *Status
	Peer   *peers.Status
	Events []string
	Count  int
	Counts *counts // of a victim
}

// runRole is the life of a process inside a namespace.
func runRole(role string) int {
	serve := serveRole
	if role == watchRole {
		serve = func(string) error { return serveWatch(os.Getenv("P2P_TEST_WORLD")) }
	}
	if err := serve(role); err != nil {
		fmt.Fprintln(os.Stderr, "role failed:", err)
		return 1
	}
	return 0
}

func serveRole(role string) error {
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	if !in.Scan() {
		return errors.New("no configuration")
	}
	var cfg roleConfig
	if err := json.Unmarshal(in.Bytes(), &cfg); err != nil {
		return err
	}
	key, err := crypto.UnmarshalPrivateKey(cfg.Key)
	if err != nil {
		return err
	}
	for _, text := range cfg.WAN {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return err
		}
		endpoint.TreatAsPublic([]netip.Prefix{prefix})
	}
	handle := func(request) reply { return reply{} }
	if role == "relay" {
		r, err := relaytest.Start(key, cfg.Listen...)
		if err != nil {
			return err
		}
		defer r.Close()
		if cfg.Sees != nil {
			r.RemoveStreamHandler(identity.SeenProtocol)
		}
		if cfg.Sees != nil && *cfg.Sees != "" {
			r.SetStreamHandler(identity.SeenProtocol, func(s network.Stream) {
				_, _ = bufio.NewReader(s).ReadString('\n')
				_, _ = io.WriteString(s, *cfg.Sees+"\n")
				_ = s.Close()
			})
		}
	} else {
		n, events, err := roleNode(key, cfg)
		if err != nil {
			return err
		}
		defer n.Close()
		if handle, err = roleHandler(n, events, cfg); err != nil {
			return err
		}
	}
	out := json.NewEncoder(os.Stdout)
	for in.Scan() {
		var r request
		if err := json.Unmarshal(in.Bytes(), &r); err != nil {
			return err
		}
		if r.Cmd == "quit" {
			return nil
		}
		if err := out.Encode(handle(r)); err != nil {
			return err
		}
	}
	return nil
}

// roleHandler answers the requests to a node.
func roleHandler(n *Node, events *eventLog, cfg roleConfig) (func(request) reply, error) {
	node := func(r request) reply { return handleRole(n, events, r) }
	switch {
	case cfg.Blocks != nil:
		v, err := newVictim(n, cfg.Blocks)
		return func(r request) reply {
			out := reply{}
			if r.Cmd == "status" || r.Cmd == "ping" {
				out = node(r)
			}
			out.Counts = v.handle(n, r).Counts
			return out
		}, err
	case cfg.Victim != "":
		to, err := peer.Decode(cfg.Victim)
		h := newHostile(n, to)
		return func(r request) reply {
			out, err := h.handle(r)
			if err != nil {
				out.Err = err.Error()
			}
			return out
		}, err
	}
	return node, nil
}

func roleNode(key crypto.PrivKey, cfg roleConfig) (*Node, *eventLog, error) {
	m := members.Membership{ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}
	for name, id := range cfg.Members {
		p, err := peer.Decode(id)
		if err != nil {
			return nil, nil, err
		}
		m.Members = append(m.Members, members.Member{Name: name, ID: p})
	}
	m.Members = append(m.Members, strangers(cfg.Many)...)
	for id, as := range cfg.Relays {
		p, err := peer.Decode(id)
		if err != nil {
			return nil, nil, err
		}
		info := peer.AddrInfo{ID: p}
		for _, a := range as {
			info.Addrs = append(info.Addrs, ma.StringCast(a))
		}
		m.Relays = append(m.Relays, info)
	}
	var listen []ma.Multiaddr
	for _, a := range cfg.Listen {
		listen = append(listen, ma.StringCast(a))
	}
	n, err := New(Config{Key: key, Listen: listen, Membership: m, SocketMark: 0xed0000, PortGuessing: cfg.Guess, Sealed: true,
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	if err != nil {
		return nil, nil, err
	}
	echo(n)
	for _, proto := range []protocol.ID{sinkProto, identity.DatagramProtocol} {
		n.SetStreamHandler(proto, func(_ peer.ID, s *paths.Stream) {
			_, _ = io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{s}, make([]byte, 256<<10))
			s.Reset()
		})
	}
	ev := &eventLog{}
	n.SetNotify(ev.add)
	if cfg.Take {
		ev.taken = take(n)
		ev.taken.counts = true
	}
	return n, ev, nil
}

type eventLog struct {
	mu    sync.Mutex
	got   []string
	taken *collector
}

// datagrams sends for d as many bytes a second beside a stream of the datagram lane, once its path takes them.
func datagrams(n *Node, c *collector, p peer.ID, rate int, d time.Duration) (paths.Path, int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	s, err := n.OpenStream(ctx, p, identity.DatagramProtocol)
	if err != nil {
		return paths.Path{}, 0, err
	}
	defer s.Reset()
	for c.size(p) < 1000 {
		_, _ = s.Write([]byte{0})
		if !wake.Sleep(ctx, 10*time.Millisecond) {
			return s.Path(), 0, fmt.Errorf("no datagrams: %+v", s.Path())
		}
	}
	time.Sleep(200 * time.Millisecond) // sleep: larger ones are searched
	b, sent := make([]byte, c.size(p)), 0
	for start := time.Now(); time.Since(start) < d; time.Sleep(time.Millisecond) { // sleep: the rate of datagrams
		for sent*len(b) < int(time.Since(start).Seconds()*float64(rate)) {
			for range 40 {
				if err := c.put(p, b); err != nil {
					return s.Path(), sent, err
				}
				sent++
			}
		}
	}
	return s.Path(), sent, nil
}

func (l *eventLog) add(e peers.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.got = append(l.got, fmt.Sprintf("%s: %s %s", e.Kind, e.Path.Kind, e.Path.Transport))
}

func handleRole(n *Node, ev *eventLog, r request) reply {
	var p peer.ID
	if r.Peer != "" {
		var err error
		if p, err = peer.Decode(r.Peer); err != nil {
			return reply{Err: err.Error()}
		}
	}
	start := time.Now()
	var out reply
	var err error
	switch r.Cmd {
	case "call":
		out.Path, err = call(n, p)
	case "ping":
		ctx, cancel := context.WithTimeout(context.Background(), r.Time)
		_, out.Path, err = n.Ping(ctx, p)
		cancel()
	case "hold": // a stream that stays open, and quiet
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		var s *paths.Stream
		if s, err = n.OpenStream(ctx, p, sinkProto); err == nil {
			out.Path = s.Path()
			_, err = s.Write([]byte{1})
		}
		cancel()
	case "blast":
		out.Path, out.Bytes, err = blast(n, p, protocol.ID(r.Proto), r.Time)
	case "datagrams":
		out.Path, out.Count, err = datagrams(n, ev.taken, p, r.Count, r.Time)
	case "taken":
		ev.taken.mu.Lock()
		out.Count, out.Bytes = ev.taken.count, uint64(ev.taken.bytes)
		ev.taken.mu.Unlock()
	case "status":
		st := n.Status()
		out.Status = &st
		if p != "" {
			ps, _ := n.PeerStatus(p)
			out.Peer = &ps
		}
		ev.mu.Lock()
		out.Events = append(out.Events, ev.got...)
		ev.mu.Unlock()
	default:
		err = fmt.Errorf("unknown command %q", r.Cmd)
	}
	out.Took = time.Since(start)
	if err != nil {
		out.Err = err.Error()
	}
	return out
}

// blast sends for d and returns how much was taken.
func blast(n *Node, p peer.ID, proto protocol.ID, d time.Duration) (paths.Path, uint64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	s, err := n.OpenStream(ctx, p, proto)
	if err != nil {
		return paths.Path{}, 0, err
	}
	defer s.Reset()
	_ = s.SetWriteDeadline(time.Now().Add(d))
	buf := make([]byte, 256<<10)
	var sum uint64
	for {
		k, err := s.Write(buf)
		sum += uint64(k)
		if err != nil {
			if os.IsTimeout(err) {
				err = nil
			}
			return s.Path(), sum, err
		}
	}
}

// process is a role that runs in a namespace.
type process struct {
	t    *testing.T
	name string
	id   peer.ID
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Scanner
	log  lockedBuffer
	done chan struct{}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// start runs role in namespace ns. It is stopped when the test ends; its log is
// shown when the test failed.
func (w *world) start(role, ns string, key crypto.PrivKey, cfg roleConfig) *process {
	w.t.Helper()
	var err error
	if cfg.Key, err = crypto.MarshalPrivateKey(key); err != nil {
		w.t.Fatal(err)
	}
	p := &process{t: w.t, name: ns, id: idOf(w.t, key), done: make(chan struct{})}
	p.cmd = exec.Command("ip", "netns", "exec", w.ns(ns), os.Args[0])
	p.cmd.Env = append(os.Environ(), "P2P_TEST_ROLE="+role)
	p.cmd.Stderr = &p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		w.t.Fatal(err)
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	p.out = bufio.NewScanner(stdout)
	p.out.Buffer(nil, 1<<20)
	if err := p.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	if err := json.NewEncoder(p.in).Encode(cfg); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		p.stop(syscall.SIGKILL)
		if w.t.Failed() {
			w.t.Logf("log of %s %s:\n%s", role, ns, p.log.String())
		}
	})
	return p
}

func (p *process) stop(sig syscall.Signal) {
	select {
	case <-p.done:
		return
	default:
	}
	_ = p.cmd.Process.Signal(sig)
	_ = p.cmd.Wait()
	close(p.done)
}

func (p *process) ask(r request) reply {
	p.t.Helper()
	if err := json.NewEncoder(p.in).Encode(r); err != nil {
		p.t.Fatalf("ask %s: %v", p.name, err)
	}
	if !p.out.Scan() {
		p.t.Fatalf("ask %s: no answer (%v)", p.name, p.out.Err())
	}
	var out reply
	if err := json.Unmarshal(p.out.Bytes(), &out); err != nil {
		p.t.Fatal(err)
	}
	return out
}

// reserved waits for a reservation and returns how long that took.
func (p *process) reserved(limit time.Duration) time.Duration {
	p.t.Helper()
	return fair.Eventually(p.t, limit, p.name+" reserves", func() error {
		st := p.ask(request{Cmd: "status"}).Status
		for _, r := range st.Relays {
			if !r.Reserved {
				return fmt.Errorf("%+v", r)
			}
		}
		return nil
	})
}

// onPath waits until p reaches to by a path of that kind, and transport if any.
func (p *process) onPath(to *process, limit time.Duration, kind paths.Kind, transport string) time.Duration {
	p.t.Helper()
	return fair.Eventually(p.t, limit, fmt.Sprintf("%s reaches %s %s %s", p.name, to.name, kind, transport), func() error {
		ps := p.ask(request{Cmd: "status", Peer: to.id.String()}).Peer
		if ps.Path.Kind != kind || transport != "" && ps.Path.Transport != transport {
			return fmt.Errorf("%+v: %s", ps.All, ps.Reason)
		}
		return nil
	})
}

func (p *process) call(to *process) reply {
	p.t.Helper()
	r := p.ask(request{Cmd: "call", Peer: to.id.String()})
	if r.Err != "" {
		p.t.Fatalf("%s calls %s: %s", p.name, to.name, r.Err)
	}
	return r
}

// reaches waits until p gets an answer from to, and returns how long that took.
func (p *process) reaches(to *process, limit time.Duration) time.Duration {
	p.t.Helper()
	return fair.Eventually(p.t, limit, p.name+" reaches "+to.name, func() error {
		if r := p.ask(request{Cmd: "call", Peer: to.id.String()}); r.Err != "" {
			return errors.New(r.Err)
		}
		return nil
	})
}
