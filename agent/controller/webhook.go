package controller

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"edgemesh/internal/endpoint"
	"edgemesh/internal/membership/kube"
	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/upkeep"
)

const (
	maxReview = 1 << 20 // bytes; a review has two objects
	// maxRead is how long a review may take to arrive: the API server waits no longer for the answer.
	maxRead = 5 * time.Second
	// maxJudged are judged at a time; others wait.
	maxJudged = 16
	// maxObject is how many bytes of JSON a node's object may have: all agents download it.
	maxObject = 8 << 10
	// maxManaged is how many bytes of managedFields a node may write, as in the policy edgemesh-own-node.
	maxManaged = 2500
	// maxPods bounds how many pods' nodes are remembered.
	maxPods = 1 << 14

	userOfNode = "system:node:"
	nodesGroup = "system:nodes"

	podName  = "authentication.kubernetes.io/pod-name"
	podUID   = "authentication.kubernetes.io/pod-uid"
	nodeName = "authentication.kubernetes.io/node-name" // from Kubernetes 1.30 on
)

// webhook is what guards objects where the API server has no ValidatingAdmissionPolicy: on Kubernetes 1.28 and 1.29. The rules and
// messages are those of the chart's policy.yaml, and test/kubeapi tries both with the same attacks.
// The chart runs one controller there: on a node's network, a second one would need a second trusted node.
type webhook struct {
	api interface {
		Get(ctx context.Context, path string, out any) error
	}
	namespace   string // of the agents and controllers
	certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	log         *slog.Logger
	slots       chan struct{} // held while one is judged

	mu   sync.Mutex
	pods map[string]string // the node of a pod, by its UID: a pod never moves
}

// review is admission.k8s.io/v1's AdmissionReview, as far as it is used.
type review struct {
	api.Type
	Request  *admission `json:"request,omitempty"`
	Response *verdict   `json:"response,omitempty"`
}

// admission is a request to judge.
type admission struct {
	UID         string `json:"uid"`
	Resource    struct{ Group, Resource string }
	SubResource string `json:"subResource"`
	Name        string `json:"name"`
	Operation   string `json:"operation"`
	UserInfo    struct {
		Username string
		Groups   []string
		Extra    map[string][]string
	} `json:"userInfo"`
	Object    json.RawMessage `json:"object"`
	OldObject json.RawMessage `json:"oldObject"`

	is, was guarded // decoded; empty where there is none
}

// guarded has what the rules are about, of whichever kind.
type guarded struct {
	Meta struct {
		api.Meta
		Finalizers    []string        `json:"finalizers"`
		ManagedFields json.RawMessage `json:"managedFields"`
	} `json:"metadata"`
	Spec struct {
		CIDR     string   `json:"cidr"`     // PodBlock
		NodeName string   `json:"nodeName"` // PodBlock
		PeerID   string   `json:"peerID"`   // MeshNode
		NodeUID  string   `json:"nodeUID"`  // NodeRecord
		Group    string   `json:"group"`    // PolicyGroup, CustomResourceDefinition
		Chunk    int      `json:"chunk"`    // PolicyGroup
		PodCIDRs []string `json:"podCIDRs"` // Node, PodNetwork
	} `json:"spec"`
	Status map[string]any `json:"status"` // Node, MeshNode
	Type   string         `json:"type"`   // Secret
}

// verdict is the answer.
type verdict struct {
	UID     string  `json:"uid"`
	Allowed bool    `json:"allowed"`
	Status  *refuse `json:"status,omitempty"`
}

// refuse is a refusal. It is the error of a rule.
type refuse struct {
	Message string `json:"message"`
	Reason  string `json:"reason"`
	Code    int    `json:"code"`
}

func (r *refuse) Error() string { return r.Message }

func forbid(format string, args ...any) error {
	return &refuse{fmt.Sprintf(format, args...), "Forbidden", http.StatusForbidden}
}

func invalid(format string, args ...any) error {
	return &refuse{fmt.Sprintf(format, args...), "Invalid", http.StatusUnprocessableEntity}
}

// Guard serves the webhook alone, until stop is called.
func Guard(ctx context.Context, cfg Config) (stop func(), err error) {
	c, err := client.New(client.Access{Kubeconfig: cfg.Kubeconfig, Server: cfg.Server}, "edgemesh-controller/"+cfg.Version, nil)
	if err != nil {
		return nil, err
	}
	_, end, err := guard(ctx, cfg, c, newMetrics(upkeep.New()))
	if err != nil {
		c.Close()
		return nil, err
	}
	return func() { end(); c.Close() }, nil
}

// guard serves the webhook until stop is called. missing says that the API server does not know it.
func guard(ctx context.Context, cfg Config, c cluster, m *metrics) (missing func() bool, stop func(), err error) {
	a := &authority{api: c, namespace: cfg.Namespace, metrics: m, log: cfg.Log, now: time.Now}
	w := &webhook{api: c, namespace: cfg.Namespace, certificate: a.get, log: cfg.Log, slots: make(chan struct{}, maxJudged)}
	end, err := w.listen(cfg.Webhook)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var stay sync.WaitGroup
	stay.Go(func() { a.run(ctx) })
	return a.missing.Load, func() { cancel(); stay.Wait(); end() }, nil
}

// listen serves on address until stop is called. It fails if the address is taken.
func (w *webhook) listen(address string) (stop func(), err error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%w: --webhook: %w; free the port, or set another one", ErrConfig, err)
	}
	return endpoint.Serve(tls.NewListener(l, &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: w.certificate}), w, w.log), nil
}

// ServeHTTP implements http.Handler.
func (w *webhook) ServeHTTP(out http.ResponseWriter, in *http.Request) {
	// Whoever reaches the port may send something: what is read is bounded, and so is what is decoded.
	_ = http.NewResponseController(out).SetReadDeadline(time.Now().Add(maxRead))
	body, err := io.ReadAll(http.MaxBytesReader(out, in.Body, maxReview))
	if err != nil {
		http.Error(out, "not read", http.StatusRequestEntityTooLarge)
		return
	}
	select {
	case w.slots <- struct{}{}:
		defer func() { <-w.slots }()
	case <-in.Context().Done():
		return
	}
	var r review
	if err := json.Unmarshal(body, &r); err != nil || r.Request == nil {
		http.Error(out, "not an AdmissionReview", http.StatusBadRequest)
		return
	}
	q := r.Request
	r.Request, r.Response = nil, &verdict{UID: q.UID, Allowed: true}
	if err := w.judge(in.Context(), q); err != nil {
		r.Response.Allowed = false
		if !errors.As(err, &r.Response.Status) {
			r.Response.Status = &refuse{err.Error(), "InternalError", http.StatusInternalServerError}
		}
		w.log.Debug("refused", "user", q.UserInfo.Username, "operation", q.Operation, "resource", q.Resource.Resource, "name", q.Name, "why", err)
	}
	out.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(out).Encode(r)
}

// judge returns why q is refused, nil if it is not.
func (w *webhook) judge(ctx context.Context, q *admission) error {
	for raw, o := range map[*json.RawMessage]*guarded{&q.Object: &q.is, &q.OldObject: &q.was} {
		if len(*raw) > 0 {
			if err := json.Unmarshal(*raw, o); err != nil {
				return fmt.Errorf("decode the object: %w", err)
			}
		}
	}
	switch q.Resource.Resource {
	case "meshnodes", "podblocks":
		err := w.ownNode(ctx, q)
		if err == nil && q.Resource.Resource == "meshnodes" {
			err = peerID(q)
		} else if err == nil {
			err = w.block(ctx, q)
		}
		return err
	case "podnetworks":
		return network(q)
	case "noderecords", "policygroups":
		return w.copies(q)
	case "nodes":
		if q.SubResource == "status" && w.isAgent(q) {
			return w.nodeStatus(ctx, q)
		}
		return nodeOfKubelet(q)
	case "customresourcedefinitions":
		if cmp.Or(q.is.Spec.Group, q.was.Spec.Group) != api.Group { // an API server may have dropped the matchConditions
			return nil
		}
		return forbid("an edge may not write the CustomResourceDefinitions of EdgeMesh")
	case "secrets", "leases":
		if !w.isController(q) {
			return nil
		}
		if t := q.is.Type; t != "" && t != "Opaque" {
			return forbid("the controller makes no Secret that Kubernetes fills")
		}
		return forbid("the controller makes only its own Lease, and the Secrets with its key and its webhook's CA")
	}
	return nil // the configuration names no others
}

func (w *webhook) account(name string) string {
	return "system:serviceaccount:" + w.namespace + ":" + name
}

func (w *webhook) isController(q *admission) bool {
	return q.UserInfo.Username == w.account("edgemesh-controller")
}

// isAgent says that q is not of a kubelet, but may be of an agent.
func (w *webhook) isAgent(q *admission) bool {
	return q.UserInfo.Username == w.account("edgemesh-agent") ||
		slices.Contains(q.UserInfo.Groups, nodesGroup) && !strings.HasPrefix(q.UserInfo.Username, userOfNode)
}

// identity is the node that q's user acts for: "" for a token that is bound to no pod, and for a user of the group without a node's
// name.
func (w *webhook) identity(ctx context.Context, q *admission, owner string) (string, error) {
	extra := func(key string) string { return cmp.Or(append(q.UserInfo.Extra[key], "")...) }
	switch name, of := strings.CutPrefix(q.UserInfo.Username, userOfNode); {
	case w.isController(q): // writes for the node that requested it and proved its identity
		return owner, nil
	case of:
		return name, nil
	case extra(nodeName) != "":
		return extra(nodeName), nil
	case q.UserInfo.Username != w.account("edgemesh-agent") || extra(podUID) == "":
		return "", nil
	}
	return w.nodeOf(ctx, extra(podName), extra(podUID))
}

// nodeOf is the node of a pod of the agents, to which the API server says that a token is bound.
func (w *webhook) nodeOf(ctx context.Context, name, uid string) (string, error) {
	w.mu.Lock()
	node := w.pods[uid]
	w.mu.Unlock()
	if node != "" {
		return node, nil
	}
	var pod struct {
		Meta api.Meta                  `json:"metadata"`
		Spec struct{ NodeName string } `json:"spec"`
	}
	if err := w.api.Get(ctx, "/api/v1/namespaces/"+url.PathEscape(w.namespace)+"/pods/"+url.PathEscape(name), &pod); err != nil {
		return "", fmt.Errorf("which node has the pod %s of the token: %w", name, err)
	}
	if pod.Meta.UID != uid || pod.Spec.NodeName == "" {
		return "", nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pods == nil || len(w.pods) >= maxPods {
		w.pods = map[string]string{}
	}
	w.pods[uid] = pod.Spec.NodeName
	return pod.Spec.NodeName, nil
}

// ownNode is the policy edgemesh-own-node.
func (w *webhook) ownNode(ctx context.Context, q *admission) error {
	if !w.isAgent(q) && !w.isController(q) && !strings.HasPrefix(q.UserInfo.Username, userOfNode) {
		return nil
	}
	it, deletes := &q.is, q.Operation == "DELETE"
	if deletes {
		it = &q.was
	}
	owner := it.Meta.Name
	if q.Resource.Resource == "podblocks" {
		owner = it.Spec.NodeName
	}
	node, err := w.identity(ctx, q, owner)
	switch {
	case err != nil:
		return err
	case node == "":
		return forbid("the identity names no node; use a token that is bound to a pod, or a node's certificate")
	case owner != node:
		return forbid("node %s may not write what is of node %s", node, owner)
	case deletes && q.Resource.Resource == "meshnodes":
		return forbid("a MeshNode is deleted with its Node, or by an administrator")
	case deletes:
		return nil
	}
	is, was := &it.Meta, &q.was.Meta
	own := is.OwnerReferences
	switch {
	case is.Annotations[api.RotateAnnotation] != was.Annotations[api.RotateAnnotation]:
		return forbid("only an administrator may allow a new peer ID")
	case len(own) != 1 || own[0].APIVersion != "v1" || own[0].Kind != "Node" || own[0].Name != node:
		return forbid("the only owner must be the node's own Node")
	case !slices.Equal(is.Finalizers, was.Finalizers):
		return forbid("a node may not prevent the deletion of its objects")
	case !maps.Equal(is.Labels, was.Labels):
		return forbid("a node may not label its objects")
	case len(is.ManagedFields) > maxManaged && len(is.ManagedFields) > len(was.ManagedFields):
		return forbid("a node may write under few names (fieldManager) what a MeshNode has; managedFields would have more than %d bytes", maxManaged)
	}
	for k, v := range is.Annotations {
		old, had := was.Annotations[k]
		if (k != api.ModeAnnotation && k != api.ProofAnnotation || len(v) > 64) && (!had || old != v) {
			return forbid("of annotations, a node may write %s and %s only, 64 bytes each", api.ModeAnnotation, api.ProofAnnotation)
		}
	}
	if !slices.Equal(own, was.OwnerReferences) {
		if err := w.ownerExists(ctx, q, node, own[0].UID); err != nil {
			return err
		}
	}
	if err := small(q.is.Status); err != nil {
		return err
	}
	if len(q.Object) > max(maxObject, len(q.OldObject)) {
		return forbid("what a node writes of itself would have %d bytes; it may have %d", len(q.Object), maxObject)
	}
	return nil
}

// small bounds what a node says of itself, in bytes of JSON: all agents download it.
func small(status map[string]any) error {
	messages, addresses := 0, 0
	list, _ := status["conditions"].([]any)
	for _, c := range list {
		if m, ok := c.(map[string]any); ok {
			text, _ := json.Marshal(m["message"])
			messages += len(text) - len(`""`)
		}
	}
	list, _ = status["relayAddresses"].([]any)
	for _, a := range list {
		addresses += len(fmt.Sprint(a))
	}
	switch {
	case messages > 2560:
		return invalid("the messages of all conditions together have more than 2560 bytes in JSON")
	case addresses > 1024:
		return invalid("the relay addresses together have more than 1024 characters")
	}
	return nil
}

// ownerExists holds that a node's new owner is its Node: one that does not exist has the garbage collector delete the object, and the peer
// ID that it pins with it. A certificate names no UID, so that it may only name an owner in a new object, as in the policy.
func (w *webhook) ownerExists(ctx context.Context, q *admission, node, uid string) error {
	if q.UserInfo.Username != w.account("edgemesh-agent") {
		if q.Operation == "CREATE" {
			return nil
		}
		return forbid("the owner must be the Node with the UID that the token names; a certificate names none, and may not change an owner")
	}
	var n api.Node
	if err := w.api.Get(ctx, api.Nodes().Path(node), &n); err != nil {
		return fmt.Errorf("the owner of the object: %w", err)
	}
	if n.Meta.UID != uid {
		return forbid("the owner must be the Node with the UID that the token names, %s", n.Meta.UID)
	}
	return nil
}

// peerID is the policy edgemesh-peer-id.
func peerID(q *admission) error {
	old := q.was.Spec.PeerID
	if q.Operation != "UPDATE" || q.is.Spec.PeerID == old || q.is.Meta.Annotations[api.RotateAnnotation] == old {
		return nil
	}
	return forbid("the peer ID of %[1]s may only change after: kubectl annotate meshnode %[1]s --overwrite %[2]s=%[3]s", q.is.Meta.Name, api.RotateAnnotation, old)
}

// block is the policy edgemesh-blocks.
func (w *webhook) block(ctx context.Context, q *admission) error {
	if q.Operation != "CREATE" {
		return nil
	}
	b := api.PodBlock{Meta: q.is.Meta.Meta, Spec: api.PodBlockSpec{CIDR: q.is.Spec.CIDR}}
	p, err := b.Prefix()
	if err != nil {
		return invalid("%v", err)
	}
	var n api.PodNetwork
	if err := w.api.Get(ctx, api.PodNetworks().Path(api.NetworkName), &n); err != nil {
		return forbid("the PodNetwork, which says where blocks are: %v", err)
	}
	s, err := kube.ReadNetwork(&n)
	switch {
	case err != nil:
		return invalid("PodNetwork %s: %v", n.Meta.Name, err)
	case !mesh.Inside(s.PodCIDRs, p):
		return invalid("%s is outside the podCIDRs of PodNetwork cluster", p)
	case p.Bits() != n.BlockBits(p):
		return invalid("%s is not of the block size of PodNetwork cluster", p)
	}
	return nil
}

// network is the policy edgemesh-network.
func network(q *admission) error {
	var n api.PodNetwork
	if err := json.Unmarshal(q.Object, &n); err != nil {
		return invalid("%v", err)
	}
	if _, err := kube.ReadNetwork(&n); err != nil {
		return invalid("%v", err)
	}
	return nil
}

// copies is the policies edgemesh-controller and edgemesh-policygroups, of what the controller writes.
func (w *webhook) copies(q *admission) error {
	m, own := &q.is.Meta, q.is.Meta.OwnerReferences
	groups := q.Resource.Resource == "policygroups"
	switch {
	case !w.isController(q) && groups && !slices.Contains(q.UserInfo.Groups, "system:masters"):
		return forbid("only the controller writes PolicyGroups; delete one that is wrong, and the controller makes it again")
	case !w.isController(q):
		return nil
	case groups:
		for k, v := range m.Labels {
			if k != api.Group+"/group" || v != q.is.Spec.Group {
				groups = false
			}
		}
		if !groups || len(m.Finalizers) > 0 || len(own) > 0 || m.Name != fmt.Sprintf("%s-%d", q.is.Spec.Group, q.is.Spec.Chunk) {
			return forbid("a PolicyGroup has no owner, only the label of its group, and the name GROUP-CHUNK")
		}
	case len(m.Finalizers) > 0 || len(own) != 1 || own[0] != api.OwnerReference{APIVersion: "v1", Kind: "Node", Name: m.Name, UID: q.is.Spec.NodeUID}:
		return forbid("the owner of a NodeRecord is the Node of its name and UID")
	}
	return nil
}

// nodeStatus is the policy edgemesh-node-status.
func (w *webhook) nodeStatus(ctx context.Context, q *admission) error {
	node, err := w.identity(ctx, q, "")
	if err != nil {
		return err
	}
	is, was := &q.is, &q.was
	switch {
	case node == "" || node != is.Meta.Name:
		return forbid("node %s may not write the status of node %s", node, is.Meta.Name)
	case !maps.Equal(is.Meta.Labels, was.Meta.Labels) || !maps.Equal(is.Meta.Annotations, was.Meta.Annotations) ||
		!slices.Equal(is.Meta.Finalizers, was.Meta.Finalizers) || !slices.Equal(is.Meta.OwnerReferences, was.Meta.OwnerReferences):
		return forbid("agents may not write the metadata of Nodes")
	}
	conditions, before := others(is.Status), others(was.Status)
	switch {
	case !reflect.DeepEqual(conditions, before):
		return forbid("agents may write no condition of Nodes but NetworkUnavailable")
	case !reflect.DeepEqual(is.Status, was.Status):
		return forbid("agents may write nothing in a Node's status but the condition NetworkUnavailable")
	}
	return nil
}

// others takes the conditions out of a Node's status, and returns those that agents may not write.
func others(status map[string]any) []any {
	out := []any{}
	list, _ := status["conditions"].([]any)
	for _, c := range list {
		if m, ok := c.(map[string]any); !ok || m["type"] != "NetworkUnavailable" {
			out = append(out, c)
		}
	}
	delete(status, "conditions")
	return out
}

// nodeOfKubelet is the policies edgemesh-pod-cidrs and edgemesh-node-labels, for a kubelet and KubeEdge's cloudcore. The API server's
// matchConditions let nothing else through, so that heartbeats never wait for a controller.
func nodeOfKubelet(q *admission) error {
	if !slices.Equal(q.is.Spec.PodCIDRs, q.was.Spec.PodCIDRs) {
		return forbid("a node may not choose its podCIDRs")
	}
	for k, v := range q.is.Meta.Labels {
		old, had := q.was.Meta.Labels[k]
		if (strings.HasPrefix(k, mesh.RestrictedPrefix) || k == "node-role.kubernetes.io/control-plane") && (!had || old != v) {
			return forbid("a node may not give itself labels that begin with %s, nor node-role.kubernetes.io/control-plane", mesh.RestrictedPrefix)
		}
	}
	return nil
}
