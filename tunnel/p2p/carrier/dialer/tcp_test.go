package dialer

import (
	"bytes"
	"io"
	"net"
	"testing"

	manet "github.com/multiformats/go-multiaddr/net"

	"edgemesh/internal/tcptest"
	"edgemesh/tunnel/p2p/carrier/socket"
)

// tcpPair returns both ends of a TCP connection.
func tcpPair(t testing.TB) (manet.Conn, net.Conn) {
	t.Helper()
	c, other := tcptest.Pair(t)
	mc, err := manet.WrapNetConn(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mc.Close(); other.Close() })
	return mc, other
}

func TestFacesServer(t *testing.T) {
	header := append([]byte{19}, "/multistream/1.0.0\n"...)
	for _, c := range []struct {
		name string
		sent []byte
		want bool
	}{
		{"a server's header", header, true},
		{"a client's header and proposal", append(bytes.Clone(header), "\x0b/tls/1.0.0\n"...), false},
		{"something short", []byte("hi"), false},
	} {
		near, other := tcpPair(t)
		b := socket.Buffered(near, nil)
		t.Cleanup(func() { b.Close() })
		if _, err := other.Write(c.sent); err != nil {
			t.Fatal(err)
		}
		if c.name == "something short" {
			other.Close()
		}
		if got := facesServer(t.Context(), b); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
		got := make([]byte, len(c.sent))
		if _, err := io.ReadFull(b, got); err != nil || !bytes.Equal(got, c.sent) {
			t.Errorf("%s: read %q, %v afterwards", c.name, got, err)
		}
	}
}
