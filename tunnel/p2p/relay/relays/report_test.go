package relays

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	mss "github.com/multiformats/go-multistream"

	"edgemesh/internal/keytest"
	"edgemesh/tunnel/p2p/who/clones"
	"edgemesh/tunnel/p2p/who/identity"
)

func newID(t testing.TB) peer.ID {
	t.Helper()
	_, id := keytest.New(t)
	return id
}

// A report cannot grow, and rubbish in it is left out.
func TestParseReport(t *testing.T) {
	one := newID(t)
	line := func(id peer.ID, ms float64) entry { return entry{ID: id.String(), Ms: ms, Held: true} }
	b, err := json.Marshal(message{Relays: []entry{line(one, 12.5), {ID: "rubbish"}}})
	if err != nil {
		t.Fatal(err)
	}
	got, ok := parseReport(b)
	if !ok || len(got.held) != 1 || !got.held[one] || got.rtt[one] != 12500*time.Microsecond {
		t.Errorf("%+v, %t", got, ok)
	}
	for _, ms := range []float64{-1, 0, 1e300} {
		b, _ := json.Marshal(message{Relays: []entry{line(one, ms)}})
		if got, ok := parseReport(b); !ok || got.rtt[one] != 0 {
			t.Errorf("distance %v: %+v, %t", ms, got, ok)
		}
	}
	many, _ := json.Marshal(message{Relays: slices.Repeat([]entry{line(one, 1)}, maxReported+1)})
	for _, bad := range []string{"", "[]", `{"relays":`, strings.Repeat("x", 100), string(many)} {
		if _, ok := parseReport([]byte(bad)); ok {
			t.Errorf("%.40q is taken", bad)
		}
	}
}

// wire is a connection to a peer whose streams a test answers.
type wire struct {
	network.Conn
	id      peer.ID
	streams chan net.Conn // the peer's ends
}

func (w wire) RemotePeer() peer.ID { return w.id }
func (wire) IsClosed() bool        { return false }
func (w wire) NewStream(context.Context) (network.Stream, error) {
	ours, theirs := net.Pipe()
	w.streams <- theirs
	return pipe{c: ours}, nil
}

// pipe is a stream whose CloseWrite ends it for both sides.
type pipe struct {
	network.Stream
	c net.Conn
}

func (p pipe) Read(b []byte) (int, error)         { return p.c.Read(b) }
func (p pipe) Write(b []byte) (int, error)        { return p.c.Write(b) }
func (p pipe) Close() error                       { return p.c.Close() }
func (p pipe) Reset() error                       { return p.c.Close() }
func (p pipe) CloseWrite() error                  { return nil }
func (p pipe) SetDeadline(at time.Time) error     { return p.c.SetDeadline(at) }
func (p pipe) SetReadDeadline(at time.Time) error { return p.c.SetReadDeadline(at) }
func (p pipe) SetWriteDeadline(time.Time) error   { return nil }
func (p pipe) SetProtocol(protocol.ID) error      { return nil }

// Two messages to a peer are never on their way together: the older one could arrive last. What changes meanwhile is in
// the next, and one that was not taken is sent again.
func TestOneReportAfterTheOther(t *testing.T) {
	s := New(Config{Now: func() time.Duration { return 0 }, Spawn: func(f func()) bool { go f(); return true }, Clone: func() *clones.Pair { return nil }, Log: slog.New(slog.DiscardHandler)})
	s.ctx, s.Peers = t.Context(), circuits{}
	w := wire{id: newID(t), streams: make(chan net.Conn, 10)}
	next := func(taken bool) {
		t.Helper()
		c := <-w.streams
		defer c.Close()
		m := mss.NewMultistreamMuxer[protocol.ID]()
		m.AddHandler(identity.RelaysProtocol, nil)
		if _, _, err := m.Negotiate(c); err != nil {
			t.Fatal(err)
		}
		var got message
		if err := json.NewDecoder(c).Decode(&got); err != nil {
			t.Fatal(err)
		}
		s.Reports.Send(w)
		s.Reports.Send(w)
		if len(w.streams) > 0 {
			t.Error("a second message before the first was taken")
		}
		if !taken { // a pipe knows no reset
			_, _ = c.Write([]byte("x"))
		}
	}
	s.Reports.Send(w)
	next(true)
	next(false)
	next(true)
}

func FuzzParseReport(f *testing.F) {
	f.Add([]byte(`{"relays":[{"id":"12D3KooWCHicWtBzdrK1QoJGgR8RJTkn5HYdQghawBrdfZ4D8mSf","ms":1.5,"held":true}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, ok := parseReport(b)
		if !ok {
			return
		}
		if len(got.held) > maxReported {
			t.Errorf("%d relays", len(got.held))
		}
		for _, d := range got.rtt {
			if d < 0 || d > maxReportedRTT {
				t.Errorf("distance %v", d)
			}
		}
	})
}

func FuzzParseSeen(f *testing.F) {
	f.Add([]byte("/ip4/5.5.1.1/tcp/4001\n/ip4/5.5.1.1/udp/4001/quic-v1\n"))
	f.Add([]byte("/ip4/5.5.1.1/tcp/443/tls/sni/x/ws\n\n/ip6/::1/tcp/0\nx"))
	f.Fuzz(func(t *testing.T, b []byte) {
		seen, err := parseSeen(bytes.NewReader(b))
		if err == nil && len(seen) > maxSeen {
			t.Errorf("%d addresses", len(seen))
		}
		for _, e := range seen {
			if !e.Valid() {
				t.Errorf("%v is no address", e)
			}
		}
	})
}
