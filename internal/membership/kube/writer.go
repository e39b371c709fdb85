package kube

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/wording"
)

// writer writes for this node: it reads back what it has written, and then sends it to
// the loop.
type writer struct {
	client *client.Client
	cfg    Config
	out    chan<- any // event, registered: what the loop hears

	relays      []mesh.Relay // over which the deputy reaches controllers, as last known
	controllers []mesh.PeerID
	swallowed   bool // the API's cache acknowledged a write that never arrived
	// refused is the UID of a Node that the API server did not let this identity make an owner: a certificate names no UID.
	refused string
}

// mayOwn reports whether n may be tried as the new owner of what is this node's.
func (w *writer) mayOwn(n *api.Node) bool { return w.refused != n.Meta.UID }

// ownerRefused notes that n may not become the owner of what. The old owner is gone, so the garbage collector deletes it,
// and then it is created again.
func (w *writer) ownerRefused(n *api.Node, what string, err error) {
	w.refused = n.Meta.UID
	w.cfg.Log.Info("the Node was recreated: the garbage collector deletes what the old one owned, then this node creates it again",
		"object", what, "node", n.Meta.Name, "err", err)
}

func (w *writer) send(ctx context.Context, m any) { send(ctx, w.out, m) }

// readBack reads what was written into out. The error wraps errLied if good
// refuses it: some caches acknowledge what they cannot store.
func (w *writer) readBack(ctx context.Context, path string, out any, good func() bool) error {
	err := w.client.Get(ctx, path, out)
	if apierrors.IsNotFound(err) || err == nil && !good() {
		return fmt.Errorf("%s: %w", path, errLied)
	}
	return err
}

func (w *writer) owner(n *api.Node) []api.OwnerReference {
	return []api.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: n.Meta.Name, UID: n.Meta.UID}}
}

// event records a warning about this node's Node, as `kubectl describe node` shows it.
func (w *writer) event(ctx context.Context, n *api.Node, reason, message string) error {
	e := api.NodeEvent(n.Meta, "edgemesh-agent", "Warning", reason, clip(message))
	var ignored struct{}
	if err := w.client.Create(ctx, api.EventsPath, e, &ignored); err != nil {
		return fmt.Errorf("record event %s: %w", reason, err)
	}
	return nil
}

// clip shortens a message to what a condition may hold: the CRD of MeshNodes takes 2560 bytes of JSON for all four.
func clip(text string) string {
	for most := 600; ; most -= 100 {
		out := wording.Foreign(text, most)
		if body, err := json.Marshal(out); most == 100 || err == nil && len(body) <= 640 {
			return out
		}
	}
}
