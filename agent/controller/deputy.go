package controller

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/membership/mesh"
	"edgemesh/tunnel/p2p/admission/enroll"
)

// writes are the requests of a deputy to the API.
type writes interface {
	Get(ctx context.Context, path string, out any) error
	Create(ctx context.Context, path string, in, out any) error
	Patch(ctx context.Context, path, contentType string, query url.Values, in, out any) error
	Remove(ctx context.Context, path, uid string) error
}

// deputy writes what is a node's own for nodes that proved who they are. It passes nothing on: what it writes it builds
// itself from the fields that it knows, and the admission policies hold for it as for the node.
type deputy struct {
	api writes
	log *slog.Logger
}

// errNotOwn is the refusal of a request for what is not the node's own.
var errNotOwn = errors.New("a controller writes what is the node's own, and nothing else")

// write answers one request.
func (d *deputy) write(ctx context.Context, e enroll.Edge, r enroll.Request) enroll.Answer {
	out, err := d.do(ctx, e, r)
	if err == nil {
		body, err := json.Marshal(out)
		if err == nil {
			d.log.Info("written for a node", "node", e.Node, "peer", e.Peer, "method", r.Method, "path", r.Path)
			return enroll.Answer{Code: http.StatusOK, Body: body}
		}
	}
	st := metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Reason: metav1.StatusReasonInternalError, Message: err.Error()}
	var refused *apierrors.StatusError
	if errors.As(err, &refused) {
		st = refused.ErrStatus
	} else if errors.Is(err, errNotOwn) {
		st.Code, st.Reason = http.StatusForbidden, metav1.StatusReasonForbidden
	}
	st.Kind, st.APIVersion = "Status", "v1"
	d.log.Info("not written for a node", "node", e.Node, "peer", e.Peer, "method", r.Method, "path", r.Path, "err", err)
	body, _ := json.Marshal(st)
	return enroll.Answer{Code: int(st.Code), Body: body}
}

// do makes the write, and returns the object as it is now.
func (d *deputy) do(ctx context.Context, e enroll.Edge, r enroll.Request) (any, error) {
	if err := mesh.CheckNodeName(e.Node); err != nil {
		return nil, fmt.Errorf("%w: %w", errNotOwn, err)
	}
	own := api.MeshNodes().Path(e.Node)
	name, isBlock := strings.CutPrefix(r.Path, api.PodBlocks().Path("")+"/")
	switch {
	case r.Method == http.MethodPost && r.Path == api.MeshNodes().Path(""):
		return d.register(ctx, e, r)
	case r.Method == http.MethodPatch && r.Path == own:
		return d.change(ctx, e, r)
	case r.Method == http.MethodPatch && r.Path == own+"/status":
		return d.status(ctx, e, r)
	case r.Method == http.MethodPost && r.Path == api.PodBlocks().Path(""):
		return d.claim(ctx, e, r)
	case r.Method == http.MethodDelete && isBlock && !strings.Contains(name, "/"):
		return d.release(ctx, e, name, r)
	}
	return nil, fmt.Errorf("%w: %s %s by node %s", errNotOwn, r.Method, r.Path, e.Node)
}

// decode reads a request's body. Fields that a controller does not know are refused, or the node would believe them written.
func decode(r enroll.Request, out any) error {
	d := json.NewDecoder(bytes.NewReader(r.Body))
	d.DisallowUnknownFields()
	if err := d.Decode(out); err != nil {
		return fmt.Errorf("%w: body: %w", errNotOwn, err)
	}
	return nil
}

// owner is the node's Node, which owns what is written for it.
func (d *deputy) owner(ctx context.Context, e enroll.Edge) ([]api.OwnerReference, error) {
	var n api.Node
	if err := d.api.Get(ctx, api.Nodes().Path(e.Node), &n); err != nil {
		return nil, err
	}
	return []api.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: e.Node, UID: n.Meta.UID}}, nil
}

// registered reads the node's MeshNode, which has the peer ID of the requester: whoever else has the node's certificate changes
// nothing of it.
func (d *deputy) registered(ctx context.Context, e enroll.Edge) (*api.MeshNode, error) {
	var m api.MeshNode
	if err := d.api.Get(ctx, api.MeshNodes().Path(e.Node), &m); err != nil {
		return nil, err
	}
	if m.Spec.PeerID != e.Peer.String() {
		return nil, fmt.Errorf("%w: MeshNode %s has peer ID %s, the requester has %s", errNotOwn, e.Node, m.Spec.PeerID, e.Peer)
	}
	return &m, nil
}

// kept are the annotations that a node may write: which plugin has its pods.
func kept(a map[string]string) map[string]string {
	if a[api.ModeAnnotation] != api.ModeKeep {
		return nil
	}
	return map[string]string{api.ModeAnnotation: api.ModeKeep}
}

// register creates the node's MeshNode.
func (d *deputy) register(ctx context.Context, e enroll.Edge, r enroll.Request) (any, error) {
	var in, out api.MeshNode
	if err := decode(r, &in); err != nil {
		return nil, err
	}
	if in.Meta.Name != e.Node || in.Spec.PeerID != e.Peer.String() {
		return nil, fmt.Errorf("%w: MeshNode %s with peer ID %s, by node %s with peer ID %s", errNotOwn, in.Meta.Name, in.Spec.PeerID, e.Node, e.Peer)
	}
	owner, err := d.owner(ctx, e)
	if err != nil {
		return nil, err
	}
	m := api.MeshNode{Type: api.Type{APIVersion: api.Group + "/" + api.Version, Kind: "MeshNode"},
		Meta: api.Meta{Name: e.Node, OwnerReferences: owner, Annotations: kept(in.Meta.Annotations)}, Spec: api.MeshNodeSpec{PeerID: e.Peer.String()}}
	return &out, d.api.Create(ctx, api.MeshNodes().Path(""), m, &out)
}

// change patches the node's MeshNode: its peer ID, which the policy pins, and the mode of its plugin.
func (d *deputy) change(ctx context.Context, e enroll.Edge, r enroll.Request) (any, error) {
	var in struct {
		Meta struct {
			UID         string             `json:"uid"`
			Owners      json.RawMessage    `json:"ownerReferences"`
			Annotations map[string]*string `json:"annotations"`
		} `json:"metadata"`
		Spec *api.MeshNodeSpec `json:"spec"`
	}
	if err := decode(r, &in); err != nil {
		return nil, err
	}
	if in.Meta.Owners != nil {
		return nil, fmt.Errorf("%w: the owner of MeshNode %s; once its Node is gone the garbage collector deletes it, and the node registers again", errNotOwn, e.Node)
	}
	meta, patch := map[string]any{"uid": in.Meta.UID}, map[string]any{}
	if in.Spec != nil {
		if in.Spec.PeerID != e.Peer.String() {
			return nil, fmt.Errorf("%w: peer ID %s by %s", errNotOwn, in.Spec.PeerID, e.Peer)
		}
		patch["spec"] = *in.Spec
	} else if _, err := d.registered(ctx, e); err != nil {
		return nil, err
	}
	if mode, ok := in.Meta.Annotations[api.ModeAnnotation]; ok {
		meta["annotations"] = map[string]any{api.ModeAnnotation: nil}
		if mode != nil && *mode == api.ModeKeep {
			meta["annotations"] = map[string]any{api.ModeAnnotation: api.ModeKeep}
		}
	}
	patch["metadata"] = meta
	var out api.MeshNode
	return &out, d.api.Patch(ctx, api.MeshNodes().Path(e.Node), client.Merge, nil, patch, &out)
}

// status patches the MeshNode's status.
func (d *deputy) status(ctx context.Context, e enroll.Edge, r enroll.Request) (any, error) {
	var in struct {
		Meta struct {
			UID string `json:"uid"`
		} `json:"metadata"`
		Status struct {
			AgentVersion   string          `json:"agentVersion,omitempty"`
			Conditions     []api.Condition `json:"conditions,omitempty"`
			PodCIDRs       []string        `json:"podCIDRs"`
			RelayAddresses []string        `json:"relayAddresses"`
			Addresses      []string        `json:"addresses"`
		} `json:"status"`
	}
	if err := decode(r, &in); err != nil {
		return nil, err
	}
	if _, err := d.registered(ctx, e); err != nil {
		return nil, err
	}
	var out api.MeshNode
	return &out, d.api.Patch(ctx, api.MeshNodes().Path(e.Node)+"/status", client.Merge, nil, in, &out)
}

// claim creates a PodBlock of the node.
func (d *deputy) claim(ctx context.Context, e enroll.Edge, r enroll.Request) (any, error) {
	var in, out api.PodBlock
	if err := decode(r, &in); err != nil {
		return nil, err
	}
	p, err := in.Prefix()
	if err != nil || in.Spec.NodeName != e.Node {
		return nil, fmt.Errorf("%w: PodBlock %s of %s for node %q, by node %s", errNotOwn, in.Meta.Name, in.Spec.CIDR, in.Spec.NodeName, e.Node)
	}
	if _, err := d.registered(ctx, e); err != nil {
		return nil, err
	}
	owner, err := d.owner(ctx, e)
	if err != nil {
		return nil, err
	}
	b := api.PodBlock{Type: api.Type{APIVersion: api.Group + "/" + api.Version, Kind: "PodBlock"},
		Meta: api.Meta{Name: api.BlockName(p), OwnerReferences: owner}, Spec: api.PodBlockSpec{CIDR: p.String(), NodeName: e.Node}}
	return &out, d.api.Create(ctx, api.PodBlocks().Path(""), b, &out)
}

// release deletes a PodBlock of the node.
func (d *deputy) release(ctx context.Context, e enroll.Edge, name string, r enroll.Request) (any, error) {
	var in struct {
		Preconditions struct {
			UID string `json:"uid"`
		} `json:"preconditions"`
	}
	if err := decode(r, &in); err != nil {
		return nil, err
	}
	if _, err := d.registered(ctx, e); err != nil {
		return nil, err
	}
	var b api.PodBlock
	if err := d.api.Get(ctx, api.PodBlocks().Path(name), &b); err != nil {
		return nil, err
	}
	if b.Spec.NodeName != e.Node || b.Meta.UID != in.Preconditions.UID {
		return nil, fmt.Errorf("%w: PodBlock %s of node %s, by node %s", errNotOwn, name, b.Spec.NodeName, e.Node)
	}
	return struct{}{}, d.api.Remove(ctx, api.PodBlocks().Path(name), b.Meta.UID)
}
