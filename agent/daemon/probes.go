package daemon

import (
	"context"
	"fmt"
	"net/http"
)

// handleProbes answers a pod's probes. why says why new pods get no network.
func handleProbes(mux *http.ServeMux, why func(context.Context) error) {
	mux.HandleFunc("GET /healthz", healthz)
	mux.HandleFunc("GET /readyz", readyz(why))
}

// healthz answers a pod's probes: the process runs.
func healthz(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") }

// readyz answers whether new pods of this node get a network. An agent that is offline is ready: the last membership works.
func readyz(why func(context.Context) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := why(r.Context()); err != nil {
			http.Error(w, "not ready: "+err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	}
}
