package proxy

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"edgemesh/internal/secretfile"
)

func env(pairs ...string) func(string) string {
	return func(k string) string {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == k {
				return pairs[i+1]
			}
		}
		return ""
	}
}

func TestFor(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("edge:p:w\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, x := range map[string]struct {
		url, file    string
		env          []string
		target, want string
	}{
		"nothing":               {target: "5.5.5.5:443"},
		"configured":            {url: "http://10.1.1.1:3128", target: "5.5.5.5:443", want: "http://10.1.1.1:3128"},
		"without a scheme":      {url: "10.1.1.1:3128", target: "5.5.5.5:443", want: "http://10.1.1.1:3128"},
		"environment":           {env: []string{"HTTPS_PROXY", "http://u:p@10.1.1.1:3128/"}, target: "relay.example:443", want: "http://u:p@10.1.1.1:3128"},
		"lower case":            {env: []string{"https_proxy", "https://proxy:8443"}, target: "5.5.5.5:443", want: "https://proxy:8443"},
		"configured goes first": {url: "http://10.1.1.1:1", env: []string{"HTTPS_PROXY", "http://10.1.1.1:2"}, target: "5.5.5.5:443", want: "http://10.1.1.1:1"},
		"none":                  {url: None, env: []string{"HTTPS_PROXY", "http://10.1.1.1:2"}, target: "5.5.5.5:443"},
		"NO_PROXY, range":       {url: "http://10.1.1.1:1", env: []string{"NO_PROXY", "5.5.0.0/16,example.org"}, target: "5.5.5.5:443"},
		"NO_PROXY, pods and Services": {url: "http://10.1.1.1:1", env: []string{"NO_PROXY", "10.244.0.0/16,10.96.0.0/12,fd00:10::/64"},
			target: "10.97.3.4:443"},
		"NO_PROXY, a pod":         {url: "http://10.1.1.1:1", env: []string{"NO_PROXY", "10.244.0.0/16,10.96.0.0/12"}, target: "10.244.7.7:6443"},
		"NO_PROXY, IPv6 Services": {url: "http://10.1.1.1:1", env: []string{"NO_PROXY", "10.244.0.0/16, fd00:10::/64"}, target: "[fd00:10::1]:443"},
		"NO_PROXY, beside a range": {url: "http://10.1.1.1:1", env: []string{"NO_PROXY", "10.244.0.0/16,10.96.0.0/12"}, target: "10.112.0.1:443",
			want: "http://10.1.1.1:1"},
		"NO_PROXY, domain":  {url: "http://10.1.1.1:1", env: []string{"no_proxy", "5.5.0.0/16,example.org"}, target: "relay.example.org:443"},
		"loopback":          {url: "http://10.1.1.1:1", target: "127.0.0.1:10550"},
		"link-local":        {url: "http://10.1.1.1:1", target: "169.254.30.10:10550"},
		"the API's Service": {url: "http://10.1.1.1:1", env: []string{"KUBERNETES_PORT", "tcp://10.96.0.1:443"}, target: "10.96.0.1:443"},
		"another Service":   {url: "http://10.1.1.1:1", env: []string{"KUBERNETES_PORT", "tcp://10.96.0.1:443"}, target: "10.96.0.2:443", want: "http://10.1.1.1:1"},
		"apiServer.host": {url: "http://10.1.1.1:1", env: []string{"KUBERNETES_PORT", "tcp://10.96.0.1:443", "KUBERNETES_SERVICE_HOST", "5.5.5.9"},
			target: "5.5.5.9:6443", want: "http://10.1.1.1:1"},
		"a pod":                   {url: "http://10.1.1.1:1", target: "10.244.7.7:6443"},
		"a pod, mapped into IPv6": {url: "http://10.1.1.1:1", target: "[::ffff:10.244.7.7]:6443"},
		"beside pods":             {url: "http://10.1.1.1:1", target: "10.245.7.7:6443", want: "http://10.1.1.1:1"},
		"a Service's name":        {url: "http://10.1.1.1:1", target: "kubernetes.default.svc:443"},
		"a Service's long name":   {url: "http://10.1.1.1:1", target: "kubernetes.default.svc.cluster.local:443"},
		"another name":            {url: "http://10.1.1.1:1", target: "svc.example:443", want: "http://10.1.1.1:1"},
		"credentials":             {url: "http://10.1.1.1:1", file: secret, target: "[2001:db8::1]:443", want: "http://edge:p%3Aw@10.1.1.1:1"},
	} {
		t.Run(name, func(t *testing.T) {
			w, err := New(Config{URL: x.url, Credentials: x.file, Getenv: env(x.env...), Inside: netip.MustParsePrefix("10.244.0.0/16").Contains})
			if err != nil {
				t.Fatal(err)
			}
			u, err := w.For(x.target)
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if u != nil {
				got = u.String()
			}
			if got != x.want {
				t.Errorf("%q, want %q", got, x.want)
			}
			r := httptest.NewRequest(http.MethodGet, "https://"+x.target+"/api", nil)
			if u2, err := w.Request(r); err != nil || (u2 == nil) != (u == nil) {
				t.Errorf("a request: %v %v", u2, err)
			}
		})
	}
}

func TestBadProxies(t *testing.T) {
	for text, want := range map[string]string{
		"socks5://10.1.1.1:1080":     "neither http nor https",
		"http://10.1.1.1":            "not http://HOST:PORT",
		"http://:3128":               "not http://HOST:PORT",
		"http://10.1.1.1:3128/x":     "not http://HOST:PORT",
		"http://u:secret@[::1":       "not a URL",
		"ftp://u:secret@10.1.1.1:21": "neither http nor https",
	} {
		_, err := New(Config{URL: text, Getenv: env()})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte("user:password"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Credentials(file); !errors.Is(err, secretfile.ErrPermissions) || !strings.Contains(err.Error(), "chmod 600 "+file) || strings.Contains(err.Error(), "password") {
		t.Errorf("a file that others may read: %v", err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"", "userwithout", ":x", "a:b\nc:d"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		w, err := New(Config{URL: "http://10.1.1.1:1", Credentials: file, Getenv: env()})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.For("5.5.5.5:443"); err == nil || !strings.Contains(err.Error(), "user:password") || text != "" && strings.Contains(err.Error(), text) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// answering is a proxy that reads a request and answers with text, then with what the target says first.
func answering(t *testing.T, answer func(c net.Conn, r *http.Request)) *url.URL {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				if r, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
					answer(c, r)
				}
			}()
		}
	}()
	return &url.URL{Scheme: "http", Host: l.Addr().String()}
}

func text(s string) func(net.Conn, *http.Request) {
	return func(c net.Conn, _ *http.Request) { _, _ = io.WriteString(c, s) }
}

func TestConnect(t *testing.T) {
	var d net.Dialer
	u := answering(t, func(c net.Conn, r *http.Request) {
		if user := r.Header.Get("Proxy-Authorization"); r.Method != http.MethodConnect || r.Host != "relay:443" || user != "Basic dTpwOnc=" {
			t.Errorf("asked %s %s as %q", r.Method, r.Host, user)
		}
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nX-A: b\r\n\r\nwhat the target says first")
		_, _ = io.Copy(c, c)
	})
	u.User = url.UserPassword("u", "p:w")
	c, err := Connect(t.Context(), d.DialContext, u, "relay:443")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	got := make([]byte, len("what the target says first"))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != "what the target says first" {
		t.Errorf("%q %v", got, err)
	}
}

func TestCauses(t *testing.T) {
	var d net.Dialer
	silent := make(chan struct{})
	var failures Failures
	t.Cleanup(func() { close(silent) })
	for name, x := range map[string]struct {
		answer func(net.Conn, *http.Request)
		want   Cause
	}{
		"407":            {text("HTTP/1.1 407 Who are you\r\n\r\n"), Unauthorized},
		"401":            {text("HTTP/1.1 401 Unauthorized\r\n\r\n"), Unauthorized},
		"403":            {text("HTTP/1.0 403 Filtered\r\nContent-Length: 100000\r\n\r\n<html>"), Forbidden},
		"405":            {text("HTTP/1.1 405 No\r\n\r\n"), Forbidden},
		"502":            {text("HTTP/1.1 502 Bad Gateway\r\n\r\n"), Failed},
		"redirect":       {text("HTTP/1.1 302 Found\r\nLocation: http://portal/\r\n\r\n"), Refused},
		"rubbish":        {text("SSH-2.0-OpenSSH_9.2\r\n"), Rubbish},
		"nothing":        {text(""), Rubbish},
		"a long head":    {text("HTTP/1.1 200 OK\r\nX-A: " + strings.Repeat("a", maxAnswer) + "\r\n\r\n"), Rubbish},
		"without an end": {func(c net.Conn, _ *http.Request) { flood(c) }, Rubbish},
		"silence":        {func(net.Conn, *http.Request) { <-silent }, Silent},
		"a web server":   {text("<html><body>It works!</body></html>"), Rubbish},
		"half an answer": {text("HTTP/1.1 200 OK\r\nX-A"), Rubbish},
		"an interim one": {text("HTTP/1.1 100 Continue\r\n\r\n"), Refused},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			if x.want != Silent {
				ctx = t.Context()
			}
			c, err := Connect(ctx, d.DialContext, answering(t, x.answer), "relay:443")
			var e *Error
			if c != nil || !errors.As(err, &e) || e.Cause != x.want {
				t.Errorf("%v %v, want %q", c, err, x.want)
			}
			failures.Note(err)
		})
	}
	u := answering(t, text(""))
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	u.Host = gone.Addr().String()
	var e *Error
	if _, err := Connect(t.Context(), d.DialContext, u, "relay:443"); !errors.As(err, &e) || e.Cause != Unreachable {
		t.Errorf("nobody listens: %v", err)
	}
	failures.Note(fmt.Errorf("connect: %w", e))
	failures.Note(errors.New("no proxy's"))
	want := map[string]uint64{"unreachable": 1, "silent": 1, "unauthorized": 2, "forbidden": 2, "failed": 1, "rubbish": 6, "refused": 2, "intercepted": 0, "cut": 0,
		"unanswered": 0, "garbled": 0}
	if got := failures.By(); !maps.Equal(got, want) {
		t.Errorf("counted %v, want %v", got, want)
	}
}

// flood sends a head without an end.
func flood(c net.Conn) {
	_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nX-A: ")
	for {
		if _, err := c.Write(bytes.Repeat([]byte("a"), 4096)); err != nil {
			return
		}
	}
}

// A proxy that puts itself in the target's place is named as such.
func TestIntercepted(t *testing.T) {
	s := httptest.NewTLSServer(http.NotFoundHandler())
	defer s.Close()
	c, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	err = tls.Client(c, &tls.Config{ServerName: "relay.example"}).Handshake()
	w := &through{}
	ctx := context.WithValue(t.Context(), throughKey{}, w)
	var e *Error
	if got := Behind(ctx, "10.1.1.1:3128", "x", io.EOF); errors.As(got, &e) || !errors.Is(got, io.EOF) || !strings.Contains(got.Error(), "10.1.1.1:3128") {
		t.Errorf("before it gave a connection: %v", got)
	}
	w.given.Store(true)
	if got := Behind(ctx, "10.1.1.1:3128", "relay.example:443", err); !errors.As(got, &e) || e.Cause != Intercepted {
		t.Errorf("%v", got)
	}
	if got := Behind(ctx, "10.1.1.1:3128", "x", io.EOF); !errors.As(got, &e) || e.Cause != Cut || !errors.Is(got, io.EOF) {
		t.Errorf("%v", got)
	}
}

// FuzzAnswer: whatever a proxy answers, Connect ends, and reads nothing behind the head.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte("HTTP/1.1 200 OK\r\n\r\n"))
	f.Add([]byte("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"))
	f.Add([]byte("HTTP/1.1 407 x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"))
	f.Fuzz(func(t *testing.T, answer []byte) {
		mine, theirs := net.Pipe()
		go func() {
			_, _ = http.ReadRequest(bufio.NewReader(theirs))
			_, _ = theirs.Write(answer)
			theirs.Close()
		}()
		dial := func(context.Context, string, string) (net.Conn, error) { return mine, nil }
		c, err := Connect(t.Context(), dial, &url.URL{Scheme: "http", Host: "proxy:1"}, "relay:443")
		if err != nil {
			var e *Error
			if c != nil || !errors.As(err, &e) {
				t.Fatalf("%v %v", c, err)
			}
			return
		}
		rest, _ := io.ReadAll(c)
		if !bytes.HasSuffix(answer, rest) || !bytes.Contains(answer[:len(answer)-len(rest)], []byte("\n")) {
			t.Fatalf("%q of %q is left", rest, answer)
		}
		c.Close()
	})
}
