package livemap

import (
	"compress/gzip"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"edgemesh/agent/observe"
)

//go:embed web/index.html web/style.css web/page.js web/draw.js web/cytoscape.min.js.gz web/cytoscape.LICENSE
var files embed.FS

const (
	// headerTime, sendTime and writeTime bound a request's header, its answer, and one message to a page.
	headerTime = 5 * time.Second
	sendTime   = time.Minute
	writeTime  = 10 * time.Second
	// maxHeader bounds a request's header, in bytes.
	maxHeader = 16 << 10
	// beatEvery is how often a page hears something, so that both sides notice a dead connection. It calls everything old after
	// three of them.
	beatEvery = 5 * time.Second
	// cookie keeps the token in the browser, where scripts cannot read it.
	cookie = "edgemesh-map"
)

// NewToken is a token that nobody can guess.
func NewToken() string {
	b := make([]byte, 24)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// Page serves the map.
type Page struct {
	Token string // who has it may look
	// Source calls each with what is heard of members until ctx ends; its error ends Serve.
	Source func(ctx context.Context, each func(observe.Event) error) error
}

// Serve serves the page on l until ctx ends or the source does.
func (p Page) Serve(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	h := &hub{m: newModel(), pages: map[chan []byte]bool{}}
	handler, err := p.handler(ctx, h)
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: headerTime, MaxHeaderBytes: maxHeader, ReadTimeout: headerTime, WriteTimeout: sendTime,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError), // clients come and go
	}
	running.Go(func() { _ = server.Serve(l) })
	running.Go(func() { h.run(ctx) })
	defer server.Close()
	err = p.Source(ctx, func(e observe.Event) error { h.m.apply(e, time.Now()); return nil })
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (p Page) handler(ctx context.Context, h *hub) (http.Handler, error) {
	web, err := fs.Sub(files, "web")
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /", http.FileServerFS(web))
	mux.HandleFunc("GET /cytoscape.min.js", library)
	mux.HandleFunc("GET /events", func(w http.ResponseWriter, r *http.Request) { events(ctx, h, w, r) })
	mux.HandleFunc("GET /pair", func(w http.ResponseWriter, r *http.Request) {
		d, ok := h.m.detail(r.FormValue("a"), r.FormValue("b"))
		if !ok {
			http.Error(w, "no such pair", http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(d)
	})
	return p.guard(mux), nil
}

// guard lets in who has the token: in the address that was printed, which becomes a cookie, or as a bearer token.
func (p Page) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		head := w.Header()
		head.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "+
			"base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		head.Set("X-Content-Type-Options", "nosniff")
		head.Set("Referrer-Policy", "no-referrer")
		head.Set("Cache-Control", "no-store")
		if token := r.URL.Query().Get("token"); r.Method == http.MethodGet && r.URL.Path == "/" && p.is(token) {
			http.SetCookie(w, &http.Cookie{Name: p.cookie(r), Value: token, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode})
			next.ServeHTTP(w, r) // no redirect: a browser sends no strict cookie on one that another program's link led to
			return
		}
		c, err := r.Cookie(p.cookie(r))
		bearer, isBearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if err == nil && p.is(c.Value) || isBearer && p.is(bearer) {
			next.ServeHTTP(w, r)
			return
		}
		head.Set("WWW-Authenticate", "Bearer")
		http.Error(w, "This page requires a token: open the address that `edgemesh-agent map` printed, which ends in ?token=…\n"+
			"If it has been restarted, it has printed a new one.", http.StatusUnauthorized)
	})
}

// is compares in a time that says nothing.
func (p Page) is(token string) bool {
	a, b := sha256.Sum256([]byte(token)), sha256.Sum256([]byte(p.Token))
	return p.Token != "" && subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// cookie has the port in its name: browsers share cookies between the ports of a host.
func (p Page) cookie(r *http.Request) string {
	_, port, err := net.SplitHostPort(r.Host)
	if err != nil || strings.Trim(port, "0123456789") != "" {
		return cookie
	}
	return cookie + "-" + port
}

// library serves the file that is embedded compressed. Clients that do not take it so get it unpacked.
func library(w http.ResponseWriter, r *http.Request) {
	packed, err := files.Open("web/cytoscape.min.js.gz")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/javascript; charset=utf-8")
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = io.Copy(w, packed)
		return
	}
	plain, err := gzip.NewReader(packed)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	_, _ = io.Copy(w, plain)
}

// events streams the map: everything first, then what changes.
func events(ctx context.Context, h *hub, w http.ResponseWriter, r *http.Request) {
	page, err := h.enter()
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	defer h.leave(page)
	w.Header().Set("Content-Type", "text/event-stream")
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{}) // the request's own is over
	send := func(text string) error {
		_ = control.SetWriteDeadline(time.Now().Add(writeTime))
		_, err := w.Write([]byte(text))
		return errors.Join(err, control.Flush())
	}
	beat := time.NewTicker(beatEvery)
	defer beat.Stop()
	for err == nil {
		select {
		case <-ctx.Done():
			return
		case <-r.Context().Done():
			return
		case <-beat.C:
			err = send("event: beat\ndata:\n\n")
		case news, ok := <-page:
			if !ok {
				return // too slow; the browser connects again
			}
			err = send("data: " + string(news) + "\n\n")
		}
	}
}

// Address is what a browser opens.
func (p Page) Address(l net.Listener) string {
	u := url.URL{Scheme: "http", Host: l.Addr().String(), Path: "/", RawQuery: url.Values{"token": {p.Token}}.Encode()}
	return u.String()
}

// ErrToken means that a token cannot be used.
var ErrToken = errors.New("the token must have at least 16 characters, letters and digits only")

// CheckToken refuses tokens that can be guessed or that an address cannot carry.
func CheckToken(token string) error {
	odd := strings.Trim(token, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
	if len(token) < 16 || len(token) > 128 || odd != "" {
		return fmt.Errorf("%w, at most 128", ErrToken)
	}
	return nil
}
