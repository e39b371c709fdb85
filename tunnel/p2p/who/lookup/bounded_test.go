package lookup

import (
	"errors"
	"io"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/test/fair"
	"edgemesh/tunnel/p2p/who/identity"
)

// A member that announces messages of 4 MiB on many streams gets room for none of them, and no more streams than it needs;
// it is still answered afterwards.
func TestServerIsBounded(t *testing.T) {
	server, member := newHost(t), newHost(t)
	refused := make(chan string, 1000)
	d, err := Serve(server, func(peer.ID) bool { return true }, func() []peer.AddrInfo { return nil },
		func(reason string, p peer.ID, _ string) {
			if p == member.ID() {
				refused <- reason
			}
		})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := member.Connect(t.Context(), peer.AddrInfo{ID: server.ID(), Addrs: server.Addrs()}); err != nil {
		t.Fatal(err)
	}
	open := func(first ...byte) network.Stream {
		s, err := member.NewStream(t.Context(), server.ID(), identity.DHTPrefix+"/kad/1.0.0")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Write(first); err != nil {
			t.Fatal(err)
		}
		return s
	}
	want := func(reason string) {
		t.Helper()
		select {
		case got := <-refused:
			if got != reason {
				t.Fatalf("refused: %q, want %q", got, reason)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("not refused: %q", reason)
		}
	}
	large := open(0x80, 0x80, 0x80, 0x02) // 4 MiB
	want(LargeMessage)
	if _, err := io.ReadAll(large); err == nil {
		t.Error("the stream of a large message was closed, not reset")
	}
	var held []network.Stream
	for range maxStreams {
		held = append(held, open(0x80)) // half a prefix
	}
	// Streams are taken up in any order: one more than may be is refused, whichever it is.
	held = append(held, open(0x80))
	want(TooManyStreams)
	for _, s := range held {
		_ = s.Reset()
	}

	client := newHost(t)
	c, err := Join(client, func(p peer.ID) bool { return p == server.ID() }, func(ma.Multiaddr) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := client.Connect(t.Context(), peer.AddrInfo{ID: server.ID(), Addrs: server.Addrs()}); err != nil {
		t.Fatal(err)
	}
	fair.Eventually(t, 20*time.Second, "FindPeer", func() error {
		at, err := c.FindPeer(t.Context(), member.ID())
		if err == nil && len(at.Addrs) == 0 {
			err = errors.New("no addresses")
		}
		return err
	})
}

// Prefixes and messages may come in any pieces.
func TestFramedReadsPieces(t *testing.T) {
	for _, piece := range []int{1, 2, 3, 1000} {
		in := append([]byte{0x02, 1, 2, 0x00, 0x80, 0x01}, make([]byte, 128)...)
		f := &framed{Stream: &pieces{data: in, n: piece}}
		if out, err := io.ReadAll(f); err != nil || len(out) != len(in) || f.left != 0 || len(f.prefix) != 0 {
			t.Errorf("in pieces of %d: %d bytes, %v, %d left, prefix %x", piece, len(out), err, f.left, f.prefix)
		}
	}
}

type pieces struct {
	network.Stream
	data []byte
	n    int
}

func (s *pieces) Read(p []byte) (int, error) {
	if len(s.data) == 0 {
		return 0, io.EOF
	}
	n := copy(p, s.data[:min(s.n, len(s.data))])
	s.data = s.data[n:]
	return n, nil
}

func newHost(t *testing.T) host.Host {
	t.Helper()
	h, err := libp2p.New(libp2p.ListenAddrStrings("/ip4/127.0.0.1/tcp/0"), libp2p.DisableRelay(), libp2p.DisableMetrics())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() })
	return h
}
