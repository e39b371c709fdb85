package link

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// Serve answers on the listener, HTTP with JSON, until ctx ends:
//
//	GET /stats    Stats
//	GET /config   Config
//	PUT /config   a Config, which replaces the old one immediately
func (e *Emulator) Serve(ctx context.Context, l net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /stats", func(w http.ResponseWriter, _ *http.Request) {
		s, err := e.Stats()
		answer(w, s, err, http.StatusInternalServerError)
	})
	mux.HandleFunc("GET /config", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, e.Config(), nil, 0)
	})
	mux.HandleFunc("PUT /config", func(w http.ResponseWriter, r *http.Request) {
		var c Config
		d := json.NewDecoder(r.Body)
		d.DisallowUnknownFields()
		err := d.Decode(&c)
		if err == nil {
			err = e.Set(c)
		}
		answer(w, c, err, http.StatusBadRequest)
	})
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { _ = s.Close(); close(stopped) })
	err := s.Serve(l)
	if !stop() {
		<-stopped
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve link control: %w", err)
}

func answer(w http.ResponseWriter, v any, err error, code int) {
	if err != nil {
		http.Error(w, err.Error(), code)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the client is gone when this fails
}

// Client talks to the emulator that serves on a unix socket.
type Client struct{ Socket string }

// Stats returns the counters so far.
func (c Client) Stats(ctx context.Context) (s Stats, err error) {
	return s, c.do(ctx, http.MethodGet, "/stats", nil, &s)
}

// Config returns what is set.
func (c Client) Config(ctx context.Context) (cfg Config, err error) {
	return cfg, c.do(ctx, http.MethodGet, "/config", nil, &cfg)
}

// Set changes the link; it is changed when Set returns.
func (c Client) Set(ctx context.Context, cfg Config) error {
	return c.do(ctx, http.MethodPut, "/config", cfg, nil)
}

// do sends one request on a connection of its own. What the emulator refuses is an
// ErrControl.
func (c Client) do(ctx context.Context, method, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("link control: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://link"+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("link control: %w", err)
	}
	t := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", c.Socket)
		},
	}
	defer t.CloseIdleConnections()
	resp, err := (&http.Client{Transport: t}).Do(req)
	if err != nil {
		return fmt.Errorf("link control: %w", err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return fmt.Errorf("link control: %w", err)
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("%w: %s", ErrControl, strings.TrimSpace(string(text)))
	case out == nil:
		return nil
	}
	if err := json.Unmarshal(text, out); err != nil {
		return fmt.Errorf("link control: %w", err)
	}
	return nil
}
