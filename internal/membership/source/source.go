// Package source provides the membership to agents and relays, from a file or from the
// Kubernetes API.
package source

import (
	"context"
	"errors"
	"fmt"

	"edgemesh/internal/config"
	"edgemesh/internal/membership/file"
	"edgemesh/internal/membership/kube"
	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/membership/mesh"
)

// ErrUnusable means that the operator must fix the source, or the access to it.
var ErrUnusable = errors.New("membership unusable")

// Source is where the membership comes from.
type Source interface {
	// Start returns the membership to start with. If the source itself has nothing
	// usable it comes from the snapshot, and warning says why. Start may wait for a
	// first answer until ctx ends. Errors wrap ErrUnusable, or are ctx's.
	Start(ctx context.Context) (s mesh.State, warning, err error)
	// Watch calls onState for every changed membership, and onErr, once per cause,
	// while there is no usable one. It returns when ctx ends.
	Watch(ctx context.Context, onState func(mesh.State), onErr func(error))
	// Confirmed is closed, some time after Watch was called, once new pods may be given addresses of the blocks in
	// force: the source has named them, or does not answer now.
	Confirmed() <-chan struct{}
	// Annotations are those of this node's Node that other network plugins set.
	Annotations() map[string]string
	// SetServing says whether this node's pods have their network: nil for yes.
	SetServing(err error)
	// SetRelay says where others reach this node as their relay, as multiaddrs
	// without /p2p/…; none means that it is not a relay.
	SetRelay(addrs []string)
	// SetPlace says which mesh addresses this node has, and which NAT is before it.
	SetPlace(api.Place)
	// SetHealthy says what is broken on this node, as a condition's reason and message; no reason: nothing is.
	SetHealthy(reason, message string)
	// Warn records an event about this node where the cluster shows it; one that cannot be recorded is forgotten.
	Warn(reason, message string)
	// Leaderless is the controllers' Lease that nobody renews; "": one does, or there is none.
	Leaderless() string
	// Follow lists and watches another kind of the API, if there is one, until ctx ends; on is called from its goroutine.
	Follow(ctx context.Context, k api.Kind, on func(kube.News))
	// Has reports whether the API surely has objects of another kind, by one small request; through an edge's cache it requests nothing.
	Has(ctx context.Context, k api.Kind) bool
	// Contact is what came of the requests to the API; nil: no API is in use.
	Contact() *client.Contact
	// String names the source in messages.
	String() string
}

// None is the membership of a relay that is told no members: those who prove the join secret are, or those with a statement (Pin).
type None struct{}

var _ Source = None{}

// Start returns an empty membership.
func (None) Start(context.Context) (s mesh.State, warning, err error) { return mesh.State{}, nil, nil }

// Watch returns when ctx ends: nothing changes.
func (None) Watch(ctx context.Context, _ func(mesh.State), _ func(error)) { <-ctx.Done() }

// Confirmed is closed: what Start returned is what there is.
func (None) Confirmed() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

func (None) Annotations() map[string]string { return nil }

func (None) SetServing(error) {}

func (None) SetRelay([]string) {}

func (None) SetPlace(api.Place) {}

func (None) SetHealthy(string, string) {}

func (None) Warn(string, string) {}

func (None) Leaderless() string { return "" }

// Follow returns: there is no API.
func (None) Follow(context.Context, api.Kind, func(kube.News)) {}

// Has is false: there is no API.
func (None) Has(context.Context, api.Kind) bool { return false }

// Contact is nil: no API is in use.
func (None) Contact() *client.Contact { return nil }

func (None) String() string { return "no membership" }

// New returns the source that m configures. For an API, c says who connects; its Access is
// taken from m, except Names. The error wraps ErrUnusable.
func New(m config.Membership, c kube.Config) (Source, error) {
	if m.Kubernetes == nil {
		return fromFile{path: m.File, stateDir: c.StateDir}, nil
	}
	names := c.Names
	c.Access = Access(m.Kubernetes)
	c.Names = names
	s, err := kube.New(c)
	if err != nil {
		return nil, &unusable{err}
	}
	return fromAPI{s}, nil
}

// Access is where k says that the API is.
func Access(k *config.Kubernetes) client.Access {
	return client.Access{Kubeconfig: k.Kubeconfig, Server: k.Server, LocalUID: k.LocalUID}
}

// fromFile is the membership in one YAML file.
type fromFile struct {
	None           // nothing is written back: the file is the operator's
	path, stateDir string
}

func (f fromFile) Start(context.Context) (mesh.State, error, error) {
	s, warning, err := file.Start(f.path, f.stateDir)
	if err != nil {
		err = &unusable{err}
	}
	return s, warning, err
}

func (f fromFile) Watch(ctx context.Context, onState func(mesh.State), onErr func(error)) {
	file.Watch(ctx, f.path, onState, onErr)
}

func (f fromFile) String() string { return f.path }

// Explain prefixes an error that wraps ErrUnusable with m's key in the configuration file
// or, if file is "", with the flag --membership. An error inside a membership file already
// names that file and its keys.
func Explain(file string, m config.Membership, err error) error {
	switch {
	case !errors.Is(err, ErrUnusable), errors.As(err, new(*mesh.Invalid)):
		return err
	case m.Kubernetes != nil:
		return fmt.Errorf("%s: membership.kubernetes: %w", file, err)
	}
	key := "--membership"
	if file != "" {
		key = file + ": membership.file"
	}
	return fmt.Errorf("%s: %w; create cluster.yaml there, or correct the path", key, err)
}

// unusable marks an error without adding text, because it already names file, key and
// remedy.
type unusable struct{ error }

func (u *unusable) Unwrap() []error { return []error{u.error, ErrUnusable} }

// fromAPI is the membership in the Kubernetes API.
type fromAPI struct{ *kube.Source }

func (f fromAPI) Start(ctx context.Context) (mesh.State, error, error) {
	s, warning, err := f.Source.Start(ctx)
	if errors.Is(err, kube.ErrConfig) {
		err = &unusable{err}
	}
	return s, warning, err
}

func (f fromAPI) Contact() *client.Contact {
	c := f.Source.Contact()
	return &c
}

func (f fromAPI) String() string { return "the Kubernetes API" }
