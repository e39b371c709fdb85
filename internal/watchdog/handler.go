package watchdog

import (
	"fmt"
	"net/http"
)

// Handler answers a liveness probe: 503 names the loops that hang, while their process is about to end.
func Handler(healthy func() error) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if err := healthy(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	}
}
