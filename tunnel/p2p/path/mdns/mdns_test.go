package mdns

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/dns/dnsmessage"

	"edgemesh/test/fair"
	"edgemesh/tunnel/p2p/nat/uplinks"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	me    = "12D3KooWMe"
	other = "12D3KooWOther"
)

// wire is a LAN without a network: what one fake socket sends, it records; what
// arrives is put in by hand.
type wire struct {
	in   chan packet
	done chan struct{}
	once sync.Once

	mu   sync.Mutex
	sent []packet
}

type packet struct {
	b     []byte
	index int
	from  netip.Addr
}

func newWire() *wire { return &wire{in: make(chan packet), done: make(chan struct{})} }

func (w *wire) is4() bool      { return true }
func (w *wire) join(int) error { return nil }
func (w *wire) Close() error   { w.once.Do(func() { close(w.done) }); return nil }

func (w *wire) send(b []byte, index int, from netip.Addr) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent = append(w.sent, packet{b, index, from})
	return nil
}

func (w *wire) read(b []byte) (int, int, netip.Addr, error) {
	select {
	case p := <-w.in:
		return copy(b, p.b), p.index, p.from, nil
	case <-w.done:
		return 0, 0, netip.Addr{}, net.ErrClosed
	}
}

// got counts the messages sent since the start that f accepts.
func (w *wire) got(f func(message) bool) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.sent {
		if m, err := parse(p.b); err == nil && f(m) {
			n++
		}
	}
	return n
}

func answers(m message) bool { return len(m.answers) > 0 }

// start runs a finder whose members are those given, until the test ends.
func start(t *testing.T, members ...string) (*Finder, *wire) {
	t.Helper()
	w := newWire()
	f := &Finder{socks: []socket{w}, found: make(map[string]places), waiting: make(map[string]chan struct{}), answered: make(map[int]time.Time),
		cfg: Config{Self: me, TCP: 4001, UDP: 4002, Log: slog.New(slog.DiscardHandler),
			Sign:   func(b []byte) ([]byte, error) { return signature(me, b), nil },
			Verify: func(id string, b, sig []byte) bool { return bytes.Equal(sig, signature(id, b)) },
			Uplinks: func() []uplinks.Link {
				return []uplinks.Link{{Index: 7, Prefixes: []netip.Prefix{netip.MustParsePrefix("192.168.1.11/24")}}}
			},
			IsMember: func(id string) bool {
				for _, m := range members {
					if m == id {
						return true
					}
				}
				return false
			}}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); f.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return f, w
}

// signature is one that everybody can make, of a member.
func signature(id string, b []byte) []byte {
	sum := sha256.Sum256(append([]byte(id), b...))
	return sum[:]
}

// signed is the claim of a member at an address.
func signed(id, from string, p ports) claim {
	return claim{p, signature(id, said(id, netip.MustParseAddr(from), p))}
}

func (w *wire) deliver(b []byte, index int, from string) {
	w.in <- packet{b, index, netip.MustParseAddr(from)}
}

func must(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}

func TestMessages(t *testing.T) {
	m, err := parse(must(query(other)))
	if err != nil || len(m.queried) != 1 || m.queried[0] != other || len(m.answers) != 0 {
		t.Errorf("question: %+v, %v", m, err)
	}
	m, err = parse(must(answer(other, claim{ports{4001, 0}, []byte("signature")})))
	if err != nil || len(m.queried) != 0 || m.answers[other].ports != (ports{4001, 0}) ||
		string(m.answers[other].sig) != "signature" {
		t.Errorf("answer: %+v, %v", m, err)
	}
	if got := claimOf([]string{"tcp=x", "udp=70000", "tcp", "tcp=5", "a=6", "sig=?"}); got.ports != (ports{5, 0}) || got.sig != nil {
		t.Errorf("ports %+v", got)
	}
	if _, err := parse([]byte("rubbish")); !errors.Is(err, errMessage) {
		t.Errorf("rubbish: %v", err)
	}
	if _, err := query("a.very.long." + string(make([]byte, 300))); err == nil {
		t.Error("a name that is none is asked for")
	}
}

func TestFind(t *testing.T) {
	f, w := start(t, other)
	ctx, cancel := fair.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	found := make(chan []Place)
	go func() { found <- f.Find(ctx, other) }()
	asks := func(m message) bool { return len(m.queried) == 1 && m.queried[0] == other }
	fair.Eventually(t, 10*time.Second, "the peer is asked for", fair.True(func() bool { return w.got(asks) > 0 }))
	w.deliver(must(answer("12D3KooWStranger", claim{ports: ports{1, 2}})), 7, "192.168.1.66")
	w.deliver(must(answer(other, claim{})), 7, "192.168.1.66")                   // listens nowhere
	w.deliver(must(answer(other, claim{ports: ports{1, 2}})), 8, "192.168.1.66") // another interface
	w.deliver(must(answer(other, claim{ports: ports{1, 2}})), 7, "10.0.0.66")    // another network
	w.deliver(must(answer(other, claim{ports: ports{4001, 4002}})), 7, "192.168.1.12")
	got := <-found
	if len(got) != 1 || got[0] != (Place{netip.MustParseAddr("192.168.1.12"), 4001, 4002}) {
		t.Errorf("found %+v", got)
	}
	f.Forget(other)
	short, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	if got := f.Find(short, other); got != nil {
		t.Errorf("forgotten, but found %+v", got)
	}
}

// Whoever asks for this node is answered, but not again and again.
func TestAnswersAreFew(t *testing.T) {
	_, w := start(t)
	fair.Eventually(t, 10*time.Second, "the announcement", fair.True(func() bool { return w.got(answers) > 0 }))
	begin := time.Now()
	for range 100 {
		w.deliver(must(query(me)), 7, "192.168.1.12")
		w.deliver(must(query(other)), 7, "192.168.1.12")
	}
	// Two announcements may fall into this time.
	if n, most := w.got(answers), 4+int(time.Since(begin)/answerEvery); n > most {
		t.Errorf("%d answers to a hundred questions", n)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.sent {
		if p.index != 7 || p.from.String() != "192.168.1.11" {
			t.Errorf("sent on %d from %s", p.index, p.from)
		}
	}
}

// A flood is dropped unread, and what is remembered stays small.
func TestFlood(t *testing.T) {
	f, w := start(t, other)
	for i := range 20 * maxPerSecond {
		from := fmt.Sprintf("192.168.1.%d", i%250+1)
		w.deliver(must(answer(fmt.Sprintf("stranger-%d", i), claim{ports: ports{1, 2}})), 7, from)
		w.deliver(must(answer(other, claim{ports: ports{1, 2}})), 7, from)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.found) > 1 || len(f.found[other].list) > maxPlaces || len(f.waiting) > 1 {
		t.Errorf("%d members, %d places, %d waiting", len(f.found), len(f.found[other].list), len(f.waiting))
	}
}

// A forged answer does not displace a true one, whichever comes first: what the member signed counts alone, and of what
// is not signed, as by former versions, what was there first.
func TestForgedAnswers(t *testing.T) {
	f, w := start(t, other)
	forge := func(n int) {
		for i := range n {
			from := fmt.Sprintf("192.168.1.%d", 100+i)
			w.deliver(must(answer(other, claim{ports: ports{1, 2}})), 7, from)
			w.deliver(must(answer(other, signed(me, from, ports{1, 2}))), 7, from)                   // by another key
			w.deliver(must(answer(other, signed(other, "192.168.1.12", ports{1, 2}))), 7, from)      // of another address
			w.deliver(must(answer(other, claim{ports{3, 4}, []byte("?")})), 7, "192.168.1.12")       // other ports
			w.deliver(must(answer(other, signed(other, from, ports{1, 2})))[:20], 7, "192.168.1.12") // cut
		}
	}
	at := func() []Place {
		w.deliver(must(query("nobody")), 7, "192.168.1.1") // what came before has been read
		w.deliver(must(query("nobody")), 7, "192.168.1.1")
		list, _ := f.known(other)
		return list
	}
	before := Place{netip.MustParseAddr("192.168.1.11"), 4001, 0}
	w.deliver(must(answer(other, claim{ports: ports{4001, 0}})), 7, "192.168.1.11") // a former version
	forge(8)
	if got := at(); len(got) == 0 || got[0] != before {
		t.Errorf("what came first is displaced: %v", got)
	}
	truth := Place{netip.MustParseAddr("192.168.1.12"), 4001, 4002}
	w.deliver(must(answer(other, signed(other, "192.168.1.12", ports{4001, 4002}))), 7, "192.168.1.12")
	forge(8)
	if got := at(); len(got) != 1 || got[0] != truth {
		t.Errorf("at %v, want only what is signed", got)
	}
}

// Only who names this node is answered.
func TestNobodyIsListed(t *testing.T) {
	_, w := start(t)
	all := dnsmessage.MustNewName(service)
	for _, typ := range []dnsmessage.Type{dnsmessage.TypePTR, dnsmessage.TypeALL, dnsmessage.TypeTXT} {
		m := dnsmessage.Message{Questions: []dnsmessage.Question{{Name: all, Type: typ, Class: dnsmessage.ClassINET}}}
		got, err := parse(must(m.Pack()))
		if err != nil || len(got.queried) != 0 {
			t.Errorf("type %v asks for %q, %v", typ, got.queried, err)
		}
		w.deliver(must(m.Pack()), 7, "192.168.1.12")
	}
}

func FuzzParse(f *testing.F) {
	f.Add(must(query(me)))
	f.Add(must(answer(me, claim{ports: ports{1, 65535}})))
	f.Add(must(answer(me, signed(me, "192.168.1.11", ports{1, 2}))))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parse(b)
		if err != nil && !errors.Is(err, errMessage) {
			t.Errorf("error %v", err)
		}
		if len(m.queried) > maxRecords || len(m.answers) > maxRecords {
			t.Errorf("%d questions, %d answers", len(m.queried), len(m.answers))
		}
	})
}
