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
	"sync"
	"time"

	"edgemesh/agent/findings"
	"edgemesh/internal/logs"
)

const (
	pathStatus = "/v1/status"
	pathPing   = "/v1/ping"
	pathPings  = "/v1/ping/stream"
	pathDoctor = "/v1/doctor"
	pathTo     = "/v1/doctor/to"
	pathPaths  = "/v1/paths"
	pathPolicy = "/v1/policy"

	onlyInUse = "in-use" // a query of pathStatus; agents that do not know it answer with all

	maxRequest      = 64 << 10 // bytes
	headerTimeout   = 2 * time.Second
	shutdownTimeout = time.Second
)

// Backend answers the requests; the daemon implements it.
type Backend interface {
	// Status has all other members, or those in use: with 1,000 members a fifth of the work.
	Status(all bool) Status
	// Ping calls each with every probe's outcome as it becomes known, not concurrently.
	Ping(ctx context.Context, r PingRequest, each func(PingResult)) (PingReply, error)
	Doctor(ctx context.Context) []findings.Finding
	// Explain follows a packet to a node or a pod's address.
	Explain(ctx context.Context, to string) ([]findings.Finding, error)
	// Policies are the NetworkPolicies in force: for one pod, or all with "".
	Policies(pod string) Policies
	LogLevel() *slog.LevelVar
	// Observe calls each with what members report of their paths, one value of JSON each, until ctx ends or each returns an error.
	Observe(ctx context.Context, each func(any) error) error
}

// Server serves one backend on the socket of one runtime directory. Do not call its
// methods concurrently.
type Server struct {
	dir      string
	http     *http.Server
	log      *slog.Logger
	listener net.Listener
	serving  sync.WaitGroup
}

// Serve creates the runtime directory if needed, replaces a socket left by a dead agent
// and serves b until Close. The state directory's lock admits one agent only, so a
// socket found here is a leftover.
func Serve(runtimeDir string, b Backend, log *slog.Logger) (*Server, error) {
	s := &Server{dir: runtimeDir, http: &http.Server{Handler: handler(b, log), ReadHeaderTimeout: headerTimeout}, log: log}
	if err := s.listen(); err != nil {
		return nil, err
	}
	return s, nil
}

// Renew creates the socket again if it was removed, for instance with the whole runtime
// directory.
func (s *Server) Renew() error {
	if _, err := os.Lstat(s.path()); !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	s.listener.Close()
	if err := s.listen(); err != nil {
		return err
	}
	s.log.Info("control socket was removed: created again", "path", s.path())
	return nil
}

func (s *Server) path() string { return filepath.Join(s.dir, SocketFile) }

func (s *Server) listen() error {
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return fmt.Errorf("create runtime directory: %w", err)
	}
	l, err := logs.Listen(s.path())
	if err != nil {
		return err
	}
	s.listener = l
	s.serving.Go(func() {
		if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			s.log.Error("control socket stopped", "err", err)
		}
	})
	return nil
}

// Close ends running requests and removes the socket.
func (s *Server) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = s.http.Close()
	}
	s.serving.Wait()
	return err
}

func handler(b Backend, log *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+pathStatus, func(w http.ResponseWriter, r *http.Request) {
		reply(w, http.StatusOK, b.Status(!r.URL.Query().Has(onlyInUse)))
	})
	mux.HandleFunc("POST "+pathPing, func(w http.ResponseWriter, r *http.Request) {
		req, ok := pingRequest(w, r, 1)
		if !ok {
			return
		}
		out, err := b.Ping(r.Context(), req, func(PingResult) {})
		found(w, out, err)
	})
	mux.HandleFunc("POST "+pathPings, func(w http.ResponseWriter, r *http.Request) {
		if req, ok := pingRequest(w, r, 0); ok {
			stream(w, r, req, b)
		}
	})
	mux.HandleFunc("POST "+pathDoctor, func(w http.ResponseWriter, r *http.Request) {
		reply(w, http.StatusOK, b.Doctor(r.Context()))
	})
	mux.HandleFunc("POST "+pathTo, func(w http.ResponseWriter, r *http.Request) {
		req, ok := pingRequest(w, r, 0)
		if !ok {
			return
		}
		out, err := b.Explain(r.Context(), req.Target)
		found(w, out, err)
	})
	mux.HandleFunc("GET "+pathPaths, func(w http.ResponseWriter, r *http.Request) {
		out, flush := lines(w)
		begun := false
		err := b.Observe(r.Context(), func(v any) error { begun = true; return errors.Join(out.Encode(v), flush()) })
		if err != nil && !begun { // later ones are the client's end
			reply(w, http.StatusServiceUnavailable, Error{Error: err.Error()})
		}
	})
	mux.HandleFunc("GET "+pathPolicy, func(w http.ResponseWriter, r *http.Request) {
		reply(w, http.StatusOK, b.Policies(r.URL.Query().Get("pod")))
	})
	mux.Handle("GET "+logs.Path, logs.Handler(b.LogLevel(), log))
	mux.Handle("PUT "+logs.Path, logs.Handler(b.LogLevel(), log))
	return mux
}

// pingRequest reads a request of at least so many probes, or refuses it.
func pingRequest(w http.ResponseWriter, r *http.Request, least int) (req PingRequest, ok bool) {
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequest)).Decode(&req)
	if err == nil && req.Count < least {
		err = fmt.Errorf("count %d: at least %d", req.Count, least)
	}
	if err != nil {
		reply(w, http.StatusBadRequest, Error{Error: "bad request: " + err.Error()})
		return req, false
	}
	return req, true
}

// stream answers with one line for each probe, as it comes.
func stream(w http.ResponseWriter, r *http.Request, req PingRequest, b Backend) {
	out, flush := lines(w)
	send := func(e pingEvent) { _ = errors.Join(out.Encode(e), flush()) } // a client that has gone ends the request's context
	done, err := b.Ping(r.Context(), req, func(p PingResult) { send(pingEvent{Probe: &p}) })
	if err != nil {
		send(pingEvent{Error: err.Error()})
		return
	}
	send(pingEvent{Reply: &done})
}

// lines begins an answer of one line of JSON after the other.
func lines(w http.ResponseWriter) (out *json.Encoder, flush func() error) {
	w.Header().Set("Content-Type", "application/x-ndjson")
	return json.NewEncoder(w), http.NewResponseController(w).Flush
}

// found answers a request about a node or an address, which may be nobody's.
func found(w http.ResponseWriter, body any, err error) {
	if err != nil {
		reply(w, http.StatusNotFound, Error{Error: err.Error()})
		return
	}
	reply(w, http.StatusOK, body)
}

// reply writes one JSON response. It is no error if the client has gone.
func reply(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body)
}
