package livemap

import (
	"bufio"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"edgemesh/agent/observe"
)

// serve serves a page whose source is the channel. stop ends it and returns its error.
func serve(t *testing.T, in <-chan observe.Event) (p Page, base string, stop func() error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p = Page{Token: NewToken(), Source: func(ctx context.Context, each func(observe.Event) error) error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case e, ok := <-in:
				if !ok {
					return errors.New("the agent ended")
				}
				_ = each(e)
			}
		}
	}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Serve(ctx, l) }()
	return p, "http://" + l.Addr().String(), func() error { cancel(); return <-done }
}

func request(t *testing.T, url string, head map[string]string) (int, string, http.Header) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range head {
		r.Header.Set(k, v)
	}
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b), resp.Header
}

// Nothing is shown without the token, whichever page is requested; with it the page and everything it needs are there.
func TestToken(t *testing.T) {
	defer goleak.VerifyNone(t)
	p, base, stop := serve(t, make(chan observe.Event))
	defer func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	}()
	for _, path := range []string{"/", "/?token=", "/?token=" + NewToken(), "/events", "/pair?a=a&b=b", "/page.js", "/cytoscape.min.js?token=" + p.Token, "/etc"} {
		code, body, _ := request(t, base+path, map[string]string{"Cookie": "edgemesh-map=x", "Authorization": "Bearer "})
		if code != http.StatusUnauthorized || !strings.Contains(body, "requires a token: open the address that `edgemesh-agent map` printed") || len(body) > 300 {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	code, body, head := request(t, base+"/?token="+p.Token, nil)
	set := head.Get("Set-Cookie")
	if code != http.StatusOK || !strings.Contains(body, "<h1>EdgeMesh</h1>") || !strings.Contains(set, "HttpOnly; SameSite=Strict") {
		t.Fatalf("%d, %q: %s", code, set, body)
	}
	if csp := head.Get("Content-Security-Policy"); !strings.Contains(csp, "default-src 'none'; script-src 'self'") || strings.Contains(csp, "unsafe") {
		t.Error(csp)
	}
	cookie, _, _ := strings.Cut(set, ";")
	for path, kind := range map[string]string{"/": "text/html", "/page.js": "text/javascript", "/draw.js": "text/javascript", "/style.css": "text/css",
		"/cytoscape.min.js": "text/javascript", "/cytoscape.LICENSE": "text/plain"} {
		for _, auth := range []map[string]string{{"Cookie": cookie}, {"Authorization": "Bearer " + p.Token}} {
			code, body, head := request(t, base+path, auth)
			if code != http.StatusOK || len(body) < 100 || !strings.HasPrefix(head.Get("Content-Type"), kind) || strings.Contains(body, "https://cdn") {
				t.Errorf("%s: %d, %s", path, code, head)
			}
		}
	}
	if code, _, _ := request(t, base+"/pair?a=a&b=b", map[string]string{"Cookie": cookie}); code != http.StatusNotFound {
		t.Errorf("an unknown pair: %d", code)
	}
}

// librarySum is the SHA-256 of dist/cytoscape.min.js in the npm package that web/package-lock.json names.
const librarySum = "081591ab735b2b6a3b31a3c60f8f3a3e2fee8c92939e0c7820ad1208571b6cd8"

// The drawing library, committed and embedded compressed, arrives as it was published, with and without compression.
func TestLibrary(t *testing.T) {
	defer goleak.VerifyNone(t)
	p, base, stop := serve(t, make(chan observe.Event))
	defer func() { _ = stop() }()
	for _, encoding := range []string{"gzip", "identity"} {
		// Accept-Encoding is set, so that the client does not unpack by itself.
		code, body, head := request(t, base+"/cytoscape.min.js", map[string]string{"Authorization": "Bearer " + p.Token, "Accept-Encoding": encoding})
		if code != http.StatusOK || (head.Get("Content-Encoding") == "gzip") != (encoding == "gzip") {
			t.Errorf("%s: %d, %v", encoding, code, head)
		}
		if encoding == "gzip" {
			body = unpack(t, body)
		}
		if sum := fmt.Sprintf("%x", sha256.Sum256([]byte(body))); sum != librarySum {
			t.Errorf("%s: the library has the digest %s, want %s", encoding, sum, librarySum)
		}
	}
}

func unpack(t *testing.T, packed string) string {
	t.Helper()
	z, err := gzip.NewReader(strings.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return string(plain)
}

// The page requests nothing that it does not contain: no other host is in it.
func TestOffline(t *testing.T) {
	for _, name := range []string{"index.html", "style.css", "page.js", "draw.js"} {
		b, err := os.ReadFile("web/" + name)
		if err != nil || strings.Contains(string(b), "//cdn") || strings.Contains(string(b), "http://") || strings.Contains(string(b), "https://") || strings.Contains(string(b), "innerHTML") {
			t.Errorf("%s names another host, or writes HTML: %v", name, err)
		}
	}
}

// A page gets everything, and then what changes; the agent's end is Serve's.
func TestEvents(t *testing.T) {
	defer goleak.VerifyNone(t)
	in := make(chan observe.Event)
	p, base, stop := serve(t, in)
	in <- observe.Event{Node: "b", PeerID: "B", Site: "</script>"}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	r, _ := http.NewRequestWithContext(ctx, http.MethodGet, base+"/events", nil)
	r.Header.Set("Authorization", "Bearer "+p.Token)
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Do(r)
	if err != nil || resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatal(resp, err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	next := func() message {
		t.Helper()
		for lines.Scan() {
			if text, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				if strings.Contains(text, "</script") {
					t.Errorf("not escaped: %s", text)
				}
				return decode(t, []byte(text))
			}
		}
		t.Fatal("the stream has ended", lines.Err())
		return message{}
	}
	for m := next(); len(m.Nodes) == 0; m = next() { // the first message may be older than b
	}
	in <- heard("a", "", observe.Pair{Peer: "B", Path: "relayed", TxBytes: 1})
	if m := next(); m.Full || len(m.Edges) != 1 || m.Edges[0].ID != "a|b" {
		t.Errorf("%+v", m)
	}
	close(in)
	for lines.Scan() { // ends with the agent
	}
	if err := stop(); err == nil || err.Error() != "the agent ended" {
		t.Error(err)
	}
}

// A page that does not read is disconnected; more than some are refused.
func TestSlowPage(t *testing.T) {
	m := newModel()
	h := &hub{m: m, pages: map[chan []byte]bool{}}
	slow, err := h.enter()
	if err != nil {
		t.Fatal(err)
	}
	for i := range maxBehind + 2 {
		m.apply(observe.Event{Node: "a", PeerID: "A", Error: strings.Repeat("x", i+1)}, time.Now())
		h.send(true)
	}
	got := 0
	for range slow {
		got++
	}
	if got != maxBehind || len(h.pages) != 0 {
		t.Errorf("%d messages waited, %d pages are left", got, len(h.pages))
	}
	h.leave(slow)
	for range maxPages {
		if _, err := h.enter(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := h.enter(); !errors.Is(err, errTooManyPages) {
		t.Error(err)
	}
}

func TestCheckToken(t *testing.T) {
	for token, ok := range map[string]bool{NewToken(): true, "": false, "short": false, "0123456789abcdef": true, "0123456789abcde!": false, strings.Repeat("a", 129): false} {
		if err := CheckToken(token); (err == nil) != ok {
			t.Errorf("%q: %v", token, err)
		}
	}
}
