package identity

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-libp2p/core/sec"
	"github.com/libp2p/go-libp2p/p2p/net/upgrader"
	libp2ptls "github.com/libp2p/go-libp2p/p2p/security/tls"

	"edgemesh/internal/keytest"
	"edgemesh/test/fair"
)

// end is one side of a handshake.
type end struct {
	id peer.ID
	t  sec.SecureTransport
}

func newEnd(t *testing.T, theirs bool, muxers ...string) end {
	t.Helper()
	key, id := keytest.New(t)
	var ms []upgrader.StreamMuxer
	for _, m := range muxers {
		ms = append(ms, upgrader.StreamMuxer{ID: protocol.ID(m)})
	}
	if theirs { // go-libp2p's own
		x, err := libp2ptls.New(libp2ptls.ID, key, ms)
		if err != nil {
			t.Fatal(err)
		}
		return end{id, x}
	}
	x, err := NewTLS(libp2ptls.ID, key, ms)
	if err != nil {
		t.Fatal(err)
	}
	return end{id, x}
}

func mustKey(t *testing.T, id peer.ID) crypto.PubKey {
	t.Helper()
	k, err := id.ExtractPublicKey()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// The key exchange is post-quantum, with libp2p's own end too: X25519MLKEM768 (draft-ietf-tls-ecdhe-mlkem).
func TestKeyExchangeIsPostQuantum(t *testing.T) {
	for name, theirs := range map[string]bool{"ours": false, "libp2p's": true} {
		client, server := newEnd(t, theirs), newEnd(t, false)
		_, s, cerr, serr := shake(t, client, server, server.id, client.id)
		if cerr != nil || serr != nil {
			t.Fatal(cerr, serr)
		}
		if got := s.(*tlsConn).session.Load().ConnectionState().CurveID; got != tls.X25519MLKEM768 {
			t.Errorf("with a client that is %s: %v", name, got)
		}
	}
}

// shake connects a client and a server, which expect each other.
func shake(t *testing.T, client, server end, clientWants, serverWants peer.ID) (c, s sec.SecureConn, cerr, serr error) {
	t.Helper()
	a, b := wired(t)
	ctx, cancel := fair.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		s, serr = server.t.SecureInbound(ctx, b, serverWants)
		if serr != nil {
			b.Close()
		}
	}()
	c, cerr = client.t.SecureOutbound(ctx, a, clientWants)
	if cerr != nil {
		a.Close()
	}
	<-done
	return c, s, cerr, serr
}

// wired are the ends of a connection that holds what is written: in net.Pipe, TLS waits 5 s for the reader of its last alert.
func wired(t *testing.T) (a, b net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err == nil {
		defer l.Close()
		a, err = net.Dial("tcp", l.Addr().String())
	}
	if err == nil {
		t.Cleanup(func() { a.Close() })
		b, err = l.Accept()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return a, b
}

// TestTLS talks to itself and to go-libp2p's own, in both roles.
func TestTLS(t *testing.T) {
	for _, c := range []struct{ clientTheirs, serverTheirs bool }{{false, false}, {true, false}, {false, true}} {
		client, server := newEnd(t, c.clientTheirs, "/two", "/one"), newEnd(t, c.serverTheirs, "/one", "/two")
		x, y, cerr, serr := shake(t, client, server, server.id, "")
		if cerr != nil || serr != nil {
			t.Fatalf("%+v: %v, %v", c, cerr, serr)
		}
		if x.RemotePeer() != server.id || y.RemotePeer() != client.id || x.LocalPeer() != client.id || !y.RemotePublicKey().Equals(mustKey(t, client.id)) {
			t.Errorf("%+v: wrong peers", c)
		}
		for _, s := range []sec.SecureConn{x, y} {
			if m := s.ConnState(); m.StreamMultiplexer != "/two" || !m.UsedEarlyMuxerNegotiation {
				t.Errorf("%+v: muxer %+v, want the client's first", c, m)
			}
		}
		go func() { _, _ = x.Write([]byte("hello")) }()
		buf := make([]byte, 5)
		if _, err := io.ReadFull(y, buf); err != nil || string(buf) != "hello" {
			t.Errorf("%+v: read %q, %v", c, buf, err)
		}
	}
}

// TestTLSRefusesStrangers: the server is another peer than the client wants.
func TestTLSRefusesStrangers(t *testing.T) {
	client, server, other := newEnd(t, false), newEnd(t, false), newEnd(t, false)
	_, _, err, _ := shake(t, client, server, other.id, "")
	var mismatch sec.ErrPeerIDMismatch
	if !errors.As(err, &mismatch) || mismatch.Actual != server.id {
		t.Errorf("client: %v, want a mismatch", err)
	}
	if _, _, _, err := shake(t, client, server, server.id, other.id); err == nil {
		t.Error("the server takes a client it did not want")
	}
}

// TestTimeless: whatever a node's clock says, it accepts the others' certificates.
func TestTimeless(t *testing.T) {
	client, server := newEnd(t, false), newEnd(t, false)
	x, _, err, serr := shake(t, client, server, server.id, "")
	if err != nil || serr != nil {
		t.Fatal(err, serr)
	}
	cert := x.(*tlsConn).session.Load().ConnectionState().PeerCertificates[0]
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	cert.UnhandledCriticalExtensions = nil // libp2p's own, which it has verified
	for _, year := range []int{1971, 2000, 2100, 9000} {
		at := time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC)
		if _, err := cert.Verify(x509.VerifyOptions{Roots: pool, CurrentTime: at}); err != nil {
			t.Errorf("in %d: %v", year, err)
		}
	}
}
