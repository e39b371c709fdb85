package kube

import (
	"context"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/membership/mesh"
)

// Config says how to reach the API and who we are there.
type Config struct {
	client.Access
	ReadOnly bool   // only read, as relays do: no own MeshNode, no NodeName
	Keep     bool   // another network plugin has the pods of this node
	Deputy   Deputy // writes what an edge-local cache may not; nil: nobody

	Waits func(error) // nil, or called from Start's goroutine with what a first start waits for

	NodeName     string
	PeerID       mesh.PeerID
	AgentVersion string
	Proxy        func(*http.Request) (*url.URL, error) // to the API; nil: as HTTPS_PROXY says
	StateDir     string                                // holds the snapshot (which the caller saves) and kube.json
	Log          *slog.Logger
}

// Deputy makes a write through one of the controllers, reached over one of the relays, and returns the API's answer.
type Deputy interface {
	Write(ctx context.Context, relays []mesh.Relay, controllers []mesh.PeerID, method, path string, body []byte) (code int, answer []byte, err error)
}

// tuning are the times that tests shorten.
type tuning struct {
	debounce  time.Duration // changes within it make one State
	allocator time.Duration // how long the cluster's allocator has for a new Node
	kick      time.Duration // a deleted MeshNode of our own comes back after it
	patience  time.Duration // a first start accepts unproved lists after it
	sustain   time.Duration // a node that stops serving says so after it
}

func defaultTuning() tuning {
	return tuning{debounce: 50 * time.Millisecond, allocator: 3 * time.Second, kick: 5 * time.Second, patience: 15 * time.Second, sustain: 10 * time.Second}
}
