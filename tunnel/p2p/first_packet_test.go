package p2p

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"edgemesh/test/fair"
	"edgemesh/test/relaytest"
	"edgemesh/tunnel/p2p/path/paths"
	"edgemesh/tunnel/p2p/who/members"
)

// firstPacketSteps are the log messages of a first packet, in order, as DESIGN.md has them.
func firstPacketSteps() []string {
	return []string{"no path: connecting", "dialing a circuit", "path is up", "stream is open"}
}

// recorder is a log that remembers the messages about a peer.
type recorder struct {
	slog.Handler
	peer string

	mu       *sync.Mutex
	messages *[]string
}

func newRecorder(t *testing.T, peer string) recorder {
	return recorder{testLog(t, "a").Handler(), peer, new(sync.Mutex), new([]string)}
}

// Handle implements slog.Handler.
func (r recorder) Handle(ctx context.Context, rec slog.Record) error {
	rec.Attrs(func(a slog.Attr) bool {
		if a.Key == "peer" && a.Value.String() == r.peer {
			r.mu.Lock()
			*r.messages = append(*r.messages, rec.Message)
			r.mu.Unlock()
		}
		return true
	})
	return r.Handler.Handle(ctx, rec)
}

// A first packet takes the steps that DESIGN.md names, each once; the next stream takes the last one alone.
func TestFirstPacket(t *testing.T) {
	_, relay := relaytest.Loopback(t)
	ka, kb := newKey(t), newKey(t)
	m := members.Membership{Members: []members.Member{{Name: "a", ID: idOf(t, ka)}, {Name: "b", ID: idOf(t, kb)}}}
	m.Relays = append(m.Relays, relay)
	log := newRecorder(t, "b")
	a, err := New(Config{Key: ka, Listen: addrs(t, "/ip4/127.0.0.1/tcp/0"), Membership: m, Log: slog.New(log)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	b := loopbackNode(t, kb, m)
	fair.Eventually(t, 10*time.Second, "reservations", func() error { return errors.Join(reserved(a, 1)(), reserved(b, 1)()) })
	steps := func() (seen []string) {
		log.mu.Lock()
		defer log.mu.Unlock()
		for _, x := range *log.messages {
			if slices.Contains(firstPacketSteps(), x) {
				seen = append(seen, x)
			}
		}
		*log.messages = nil
		return seen
	}
	path, err := call(a, b.ID())
	if err != nil || path.Kind != paths.KindRelayed {
		t.Fatalf("%+v, %v", path, err)
	}
	seen := steps()
	if i := slices.Index(seen, "stream is open"); i < 0 || !slices.Equal(seen[:i+1], firstPacketSteps()) {
		t.Errorf("the steps were %q, want %q", seen, firstPacketSteps())
	}
	fair.Eventually(t, 10*time.Second, "direct", onPath(a, b.ID(), paths.KindDirect, "tcp"))
	steps()
	if _, err := call(a, b.ID()); err != nil {
		t.Fatal(err)
	}
	seen = slices.DeleteFunc(steps(), func(step string) bool { return step == "path is up" }) // another one, beside it
	if len(seen) != 1 || seen[0] != "stream is open" {
		t.Errorf("a stream to a connected peer took the steps %q", seen)
	}
	page, err := os.ReadFile("DESIGN.md")
	if err != nil {
		t.Fatal(err)
	}
	rest := string(page)
	for _, step := range firstPacketSteps() {
		_, after, ok := strings.Cut(rest, "`"+step+"`")
		if !ok {
			t.Errorf("DESIGN.md does not name the step %q in its place", step)
			continue
		}
		rest = after
	}
}
