package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

const (
	pathStatus = "/v1/status"
	pathPing   = "/v1/ping"
	pathDoctor = "/v1/doctor"

	maxRequest      = 64 << 10 // bytes
	headerTimeout   = 2 * time.Second
	shutdownTimeout = time.Second
)

// Backend answers the questions; the daemon implements it.
type Backend interface {
	Status() Status
	Ping(ctx context.Context, r PingRequest) (PingReply, error)
	Doctor(ctx context.Context) []Finding
}

// Server serves one backend on the socket of one runtime directory.
type Server struct {
	http *http.Server
	done chan struct{}
}

// Serve makes the runtime directory if needed, replaces a socket left by a dead
// agent and serves b until Close. Only one agent per state directory runs (its
// lock says so), hence a socket found here is a leftover.
func Serve(runtimeDir string, b Backend, log *slog.Logger) (*Server, error) {
	if err := os.MkdirAll(runtimeDir, 0o755); err != nil {
		return nil, fmt.Errorf("make runtime directory: %w", err)
	}
	path := filepath.Join(runtimeDir, SocketFile)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove old socket: %w", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("restrict %s: %w", path, err)
	}
	s := &Server{
		http: &http.Server{Handler: handler(b), ReadHeaderTimeout: headerTimeout},
		done: make(chan struct{}),
	}
	go func() {
		defer close(s.done)
		if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Error("control socket stopped", "err", err)
		}
	}()
	return s, nil
}

// Close ends running requests and removes the socket.
func (s *Server) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = s.http.Close()
	}
	<-s.done
	return err
}

func handler(b Backend) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+pathStatus, func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, b.Status())
	})
	mux.HandleFunc("POST "+pathPing, func(w http.ResponseWriter, r *http.Request) {
		var req PingRequest
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequest)).Decode(&req); err != nil {
			reply(w, http.StatusBadRequest, Error{Error: "bad request: " + err.Error()})
			return
		}
		out, err := b.Ping(r.Context(), req)
		if err != nil {
			reply(w, http.StatusNotFound, Error{Error: err.Error()})
			return
		}
		reply(w, http.StatusOK, out)
	})
	mux.HandleFunc("POST "+pathDoctor, func(w http.ResponseWriter, r *http.Request) {
		reply(w, http.StatusOK, b.Doctor(r.Context()))
	})
	return mux
}

// reply writes one JSON answer. A client that went away is no error of ours.
func reply(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body)
}
