package netcheck

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"edgemesh/agent/findings"
	"edgemesh/internal/membership/mesh"
)

// A network whose portal answers for every host's port 80 is named with the page's host; a relay's own web server is none.
func TestPortal(t *testing.T) {
	for name, x := range map[string]struct {
		answer func(http.ResponseWriter)
		want   string
	}{
		"a redirect": {func(w http.ResponseWriter) {
			w.Header().Set("Location", "https://login.hotel.example/?next=x")
			w.WriteHeader(http.StatusFound)
		}, "login.hotel.example"},
		"511": {func(w http.ResponseWriter) {
			w.WriteHeader(http.StatusNetworkAuthenticationRequired)
			_, _ = io.WriteString(w, `<meta http-equiv="refresh" content="0; url=https://login.example.net/">`)
		}, "login.example.net"},
		"a page that leads on": {func(w http.ResponseWriter) {
			_, _ = io.WriteString(w, `<html><META HTTP-EQUIV='Refresh' CONTENT="1; URL=http://10.1.0.1:8002/index.html"></html>`)
		}, "10.1.0.1:8002"},
		"WISPr": {func(w http.ResponseWriter) {
			_, _ = io.WriteString(w, `<!-- <Redirect><LoginURL>https://wifi.example.org/in</LoginURL></Redirect> -->`)
		}, "wifi.example.org"},
		"a script": {func(w http.ResponseWriter) {
			_, _ = io.WriteString(w, `<script>window.location.href = "http://login.example.com/?mac=1";</script>`)
		}, "login.example.com"},
		"https of the relay itself": {func(w http.ResponseWriter) {
			w.Header().Set("Location", "https://127.0.0.1/")
			w.WriteHeader(http.StatusMovedPermanently)
		}, ""},
		"a page": {func(w http.ResponseWriter) {
			_, _ = io.WriteString(w, `Welcome to <a href="http://nginx.org/">nginx</a>`)
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // each waits for what does not answer
			web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { x.answer(w) }))
			defer web.Close()
			k, end := newChecker(Config{})
			defer end()
			port, _ := closed(t)
			k.connect = func(ctx context.Context, network, address string) (net.Conn, error) {
				if strings.HasPrefix(address, "[") {
					return nil, unix.ENETUNREACH
				}
				if strings.HasSuffix(address, ":80") {
					address = web.Listener.Addr().String()
				}
				return new(net.Dialer).DialContext(ctx, network, address)
			}
			// Without IPv6, and where UDP alone is served, too.
			r, _ := k.relay(t.Context(), mesh.Relay{PeerID: "12D3KooWCHicWtBzdrK1QoJGgR8RJTkn5HYdQghawBrdfZ4D8mSf", Addrs: []string{"/ip6/100::1/tcp/4001", fmt.Sprintf("/ip4/127.0.0.1/udp/%s/quic-v1", port)}})
			found := Portal([]Relay{r})
			if r.Portal != x.want || (len(found) > 0) != (x.want != "") {
				t.Fatalf("%q, %+v; want %q", r.Portal, found, x.want)
			}
			if x.want == "" {
				return
			}
			all := findings.Causes(append(found, findings.Brokenf("relay-unreachable", "check", "no answer").About(r.PeerID)))
			if len(all) != 1 || !strings.Contains(all[0].Text+all[0].Remedy, x.want) {
				t.Errorf("%+v", all)
			}
			if p := problems(Report{Relays: []Relay{r}}); p[0].ID != "captive-portal" {
				t.Errorf("netcheck: %+v", p)
			}
		})
	}
}

// A portal, or whoever else answers in a relay's place, is not followed anywhere, and has little read.
func TestPortalIsBounded(t *testing.T) {
	const plenty = 8 << 20
	x := strings.Repeat("x", 64<<10)
	for what, head := range map[string]string{
		"page":   "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n",
		"field":  "HTTP/1.1 302 Found\r\nLocation: http://login.example/",
		"status": "HTTP/1.1 ",
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		taken := make(chan int, 1)
		go func() {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			_ = c.(*net.TCPConn).SetWriteBuffer(64 << 10)
			_, _ = io.WriteString(c, head)
			n := 0
			for ; n < plenty && err == nil; n += len(x) {
				_, err = io.WriteString(c, x)
			}
			taken <- n
		}()
		k, end := newChecker(Config{})
		defer end()
		k.connect = new(net.Dialer).DialContext
		_, port, _ := net.SplitHostPort(l.Addr().String())
		if host := k.page(t.Context(), target{kind: tcp, host: "127.0.0.1", port: port}); host != "" {
			t.Errorf("an endless %s: %q", what, host)
		}
		if n := <-taken; n >= plenty {
			t.Errorf("an endless %s: %d bytes are taken", what, n)
		}
	}

	followed := false
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { followed = true }))
	defer elsewhere.Close()
	web := httptest.NewServer(http.RedirectHandler(elsewhere.URL+"/latest/meta-data/", http.StatusFound))
	defer web.Close()
	k, end := newChecker(Config{})
	defer end()
	k.connect = new(net.Dialer).DialContext
	host, port, _ := net.SplitHostPort(web.Listener.Addr().String())
	_ = k.page(t.Context(), target{kind: tcp, host: host, port: port})
	if followed {
		t.Error("a redirect is followed")
	}
}
