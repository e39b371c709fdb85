package resolve

import (
	"net"
	"testing"
	"time"

	"edgemesh/internal/nstest"
	"edgemesh/test/fair"
)

// Where no IPv4 route is, a public IPv4 literal, such as the Kubernetes API's, is reached through NAT64. A Service's address is
// not translated.
func TestLiteralThroughNAT64(t *testing.T) {
	nstest.Enter(t)
	nstest.Run(t, "ip -6 addr add 64:ff9b::505:505/128 dev lo nodad\nip -6 addr add 64:ff9b::10.96.0.1/128 dev lo nodad")
	l, err := net.Listen("tcp6", "[::]:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	// The kernel makes an address's route in its own time, also without duplicate address detection.
	fair.Eventually(t, 20*time.Second, "both addresses have their routes", func() error {
		for _, at := range []string{"64:ff9b::505:505", "64:ff9b::10.96.0.1"} {
			c, err := net.Dial("tcp6", net.JoinHostPort(at, port))
			if err != nil {
				return err
			}
			c.Close()
		}
		return nil
	})
	n := names(t, "", "127.0.0.1:1")
	for host, reached := range map[string]bool{"5.5.5.5": true, "10.96.0.1": false} {
		c, err := n.Dialer((&net.Dialer{Timeout: 10 * time.Second}).DialContext)(t.Context(), "tcp4", net.JoinHostPort(host, port))
		if (err == nil) != reached {
			t.Errorf("%s: %v", host, err)
		}
		if err == nil {
			if at := c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().String(); at != "64:ff9b::505:505" {
				t.Errorf("%s is dialed at %s", host, at)
			}
			c.Close()
		}
	}
}
