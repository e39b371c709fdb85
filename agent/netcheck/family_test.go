package netcheck

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"edgemesh/agent/findings"
	"edgemesh/internal/membership/mesh"
)

// closed is a port of ::1 that nothing listens on, and silent a UDP one that never answers.
func closed(t *testing.T) (tcp, silent string) {
	t.Helper()
	l, err := net.Listen("tcp6", "[::1]:0")
	if err != nil {
		t.Skip("no IPv6 here: ", err)
	}
	_, tcp, _ = net.SplitHostPort(l.Addr().String())
	l.Close()
	c, err := net.ListenPacket("udp6", "[::1]:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_, silent, _ = net.SplitHostPort(c.LocalAddr().String())
	return tcp, silent
}

// A relay whose IPv6 is broken is reported as such, for each protocol, and opening UDP is not advised.
func TestBrokenIPv6(t *testing.T) {
	t.Parallel()
	port, silent := closed(t)
	one := relay(t)
	one.Addrs = append([]string{"/ip6/::1/tcp/" + port, "/ip6/::1/udp/" + silent + "/quic-v1"}, one.Addrs...)
	r := Run(t.Context(), Config{Relays: []mesh.Relay{one}})
	x := r.Relays[0]
	if !x.TCP.Answered() || !x.UDP.Answered() || len(x.Probes) < 5 {
		t.Fatalf("%+v", x)
	}
	causes := map[string]Cause{}
	for _, p := range x.Probes {
		causes[p.Family+" "+p.Transport] = p.Cause
	}
	if causes["IPv6 tcp"] != Closed || causes["IPv6 udp"] != Silent || causes["IPv4 tcp"] != "" || causes["IPv4 udp"] != "" {
		t.Errorf("causes: %v", causes)
	}
	var found []string
	for _, f := range r.Problems {
		if f.ID == "uplink" || f.ID == "mtu" { // of the machine that the test runs on
			continue
		}
		found = append(found, f.ID+": "+f.Text)
		if f.Severity != findings.Warning || !strings.Contains(f.Remedy, "repair IPv6") {
			t.Errorf("%+v", f)
		}
	}
	if len(found) != 1 || !strings.HasPrefix(found[0], "ip-version: ") || !strings.Contains(found[0], "TCP at /ip6/::1/") || !strings.Contains(found[0], "UDP at /ip6/::1/") {
		t.Errorf("found %q", found)
	}
}

// DNS, a missing route, a closed port and silence have remedies of their own.
func TestRemedies(t *testing.T) {
	t.Parallel()
	for what, x := range map[string]struct {
		causes []Cause
		want   string
	}{
		"DNS":              {[]Cause{NoName}, "name servers"},
		"no route":         {[]Cause{NoRoute, NoRoute}, "default route"},
		"closed":           {[]Cause{NoRoute, Closed}, "start edgemesh-relay"},
		"silent":           {[]Cause{NoRoute, Silent}, "firewall"},
		"a former address": {[]Cause{NoName, Silent}, "name servers (/etc/resolv.conf), or list the relay's addresses in the membership beside its name; then check that that host"},
		"cut off":          {[]Cause{NoName, NoRoute}, "default route"},
		"no address":       {nil, "has its addresses"},
		"something there":  {[]Cause{Silent, Other}, "what answers there"},
	} {
		var r Relay
		for _, c := range x.causes {
			r.Probes = append(r.Probes, Probe{Cause: c})
		}
		if got := r.Remedy(); !strings.Contains(got, x.want) {
			t.Errorf("%s: %q, want %q", what, got, x.want)
		}
	}
	for err, want := range map[error]Cause{
		&net.DNSError{}: NoName, fmt.Errorf("dial: %w", unix.ENETUNREACH): NoRoute, &net.OpError{Err: unix.ECONNREFUSED}: Closed,
		context.DeadlineExceeded: Silent, errors.New("404"): Other,
	} {
		if got := causeOf(err); got != want {
			t.Errorf("%v is %q, want %q", err, got, want)
		}
	}
}
