package endpoint

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
)

func TestLoopback(t *testing.T) {
	for address, want := range map[string]string{"mesh:9469": "127.0.0.1:9469 true", "127.0.0.1:1": "127.0.0.1:1 false", "0.0.0.0:9": "0.0.0.0:9 false", ":80": ":80 false"} {
		if at, mesh := Loopback(address); fmt.Sprintf("%s %t", at, mesh) != want {
			t.Errorf("%s: %s %v, want %s", address, at, mesh, want)
		}
	}
}

// TestFollower: addresses come and go, one cannot be listened on, and the port stays the same.
func TestFollower(t *testing.T) {
	first, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "served") })
	var said strings.Builder
	f, err := NewFollower(first.Addr(), h, slog.New(slog.NewTextHandler(&said, nil)))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	serves := func(host string, want bool) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("http://%s:%d/", host, first.Addr().(*net.TCPAddr).Port), nil)
		if err != nil {
			t.Fatal(err)
		}
		c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		resp, err := c.Do(req)
		body := ""
		if err == nil {
			b, _ := io.ReadAll(resp.Body) // what is missing fails below
			body = string(b)
			resp.Body.Close()
		}
		if (body == "served") != want {
			t.Errorf("%s: %q, %v; want it served: %v", host, body, err, want)
		}
	}
	two, three, foreign := netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("127.0.0.3"), netip.MustParseAddr("203.0.113.7")
	f.Set([]netip.Addr{two, foreign})
	f.Set([]netip.Addr{two, foreign})
	serves("127.0.0.2", true)
	serves("127.0.0.3", false)
	if n := strings.Count(said.String(), "203.0.113.7"); n == 0 || strings.Count(said.String(), "level=WARN") != 1 {
		t.Errorf("what failed is said once: %s", said.String())
	}
	f.Set([]netip.Addr{three})
	serves("127.0.0.2", false)
	serves("127.0.0.3", true)
	f.Close()
	serves("127.0.0.3", false)
}
