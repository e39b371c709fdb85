package gate

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/sec"
	"github.com/libp2p/go-libp2p/p2p/muxer/yamux"
	tptu "github.com/libp2p/go-libp2p/p2p/net/upgrader"
	libp2ptls "github.com/libp2p/go-libp2p/p2p/security/tls"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"edgemesh/internal/keytest"
)

// Before its turn a connection hears multistream-select's header, which go-multistream sends unasked, and nothing else:
// members know by that whether they wait (package dialer).
func TestGreetingBeforeTheTurn(t *testing.T) {
	const header = "\x13/multistream/1.0.0\n"
	key, _ := keytest.New(t)
	muxers := []tptu.StreamMuxer{{ID: yamux.ID, Muxer: yamux.DefaultTransport}}
	tls, err := libp2ptls.New(libp2ptls.ID, key, muxers)
	if err != nil {
		t.Fatal(err)
	}
	g := newGate(64)
	g.turns = turnsOf(1)
	pass, ok := g.turns.take(from(0), false, nil)
	if !ok {
		t.Fatal("no turn")
	}
	up, err := tptu.New([]sec.SecureTransport{tls}, muxers, nil, g, nil)
	if err != nil {
		t.Fatal(err)
	}
	tcp, err := manet.Listen(ma.StringCast("/ip4/127.0.0.1/tcp/0"))
	if err != nil {
		t.Fatal(err)
	}
	guarded := g.Upgrader(up)
	l := guarded.UpgradeGatedMaListener(nil, guarded.GateMaListener(tcp))
	defer l.Close()
	c, err := net.Dial("tcp", tcp.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	proposal := header + "\x0b/tls/1.0.0\n"
	if _, err := c.Write([]byte(proposal)); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(header))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != header {
		t.Fatalf("%q, %v, want %q", got, err, header)
	}
	_ = c.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	if n, err := c.Read(got); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("before its turn: %q, %v", got[:n], err)
	}
	pass()
	_ = c.SetReadDeadline(time.Time{})
	got = make([]byte, len("\x0b/tls/1.0.0\n"))
	if _, err := io.ReadFull(c, got); err != nil || !bytes.HasSuffix([]byte(proposal), got) {
		t.Fatalf("in its turn: %q, %v", got, err)
	}
}
