package logs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

// Path is where Handler is served.
const Path = "/v1/log-level"

const (
	maxBody   = 4 << 10 // bytes
	maxAnswer = 1 << 20
	timeout   = 5 * time.Second
)

// State is the body of requests and responses.
type State struct {
	Level string `json:"level,omitempty"`
	Error string `json:"error,omitempty"`
}

// Handler answers GET with the level, and sets it with PUT.
func Handler(v *slog.LevelVar, log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		code, is := http.StatusOK, State{}
		if r.Method == http.MethodPut {
			if err := set(v, log, http.MaxBytesReader(w, r.Body, maxBody)); err != nil {
				code, is.Error = http.StatusBadRequest, err.Error()
			}
		}
		is.Level = strings.ToLower(v.Level().String())
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(is) // the client may have gone
	})
}

func set(v *slog.LevelVar, log *slog.Logger, body io.Reader) error {
	var want State
	if err := json.NewDecoder(body).Decode(&want); err != nil {
		return fmt.Errorf("bad request: %w", err)
	}
	l, err := Parse(want.Level)
	if err != nil {
		return err
	}
	if was := v.Level(); was != l {
		v.Set(min(was, l, slog.LevelInfo)) // the change itself is logged
		log.Info("log level changed", "from", was, "to", l)
	}
	v.Set(l)
	return nil
}

// Listen makes a unix socket, which only this user may open, in place of one that was left.
func Listen(socket string) (net.Listener, error) {
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove old socket: %w", err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", socket, err)
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("restrict %s: %w", socket, err)
	}
	return l, nil
}

// Serve serves Handler, and others by their patterns, on a unix socket, which only this user may open, until stop is called.
func Serve(socket string, v *slog.LevelVar, log *slog.Logger, others map[string]http.Handler) (stop func(), err error) {
	l, err := Listen(socket)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("GET "+Path, Handler(v, log))
	mux.Handle("PUT "+Path, Handler(v, log))
	for pattern, h := range others {
		mux.Handle(pattern, h)
	}
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: timeout}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(l) }()
	return func() { _ = srv.Close(); <-done }, nil
}

// Ask sets the level of the program that serves socket, unless level is "", and returns it.
func Ask(ctx context.Context, socket, level string) (string, error) {
	method, body := http.MethodGet, []byte(nil)
	if level != "" {
		method = http.MethodPut
		b, err := json.Marshal(State{Level: level})
		if err != nil {
			return "", err
		}
		body = b
	}
	var is State
	err := Call(ctx, socket, method, Path, body, &is)
	if err == nil && is.Error != "" {
		err = errors.New(is.Error)
	}
	return is.Level, err
}

// Call sends a request to the program that serves socket, and decodes its answer, which is JSON whatever its code.
func Call(ctx context.Context, socket, method, path string, body []byte, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var d net.Dialer
	t := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return d.DialContext(ctx, "unix", socket) }}
	defer t.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, method, "http://program"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := (&http.Client{Transport: t}).Do(req)
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("nothing came from %s within %v: the program hangs, and a restart helps", socket, timeout)
	}
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(answer); err != nil {
		return fmt.Errorf("the program answered %s: %w", resp.Status, err)
	}
	return nil
}
