package kubeapi_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/agent/deputy"
	"edgemesh/internal/keytest"
	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/wake"
	"edgemesh/test/fair"
	"edgemesh/test/kubeapi"
	"edgemesh/test/relaytest"
	"edgemesh/tunnel/p2p/admission/enroll"
)

// asker asks the controller with one key and one certificate.
type asker struct {
	t          *testing.T
	deputy     *deputy.Deputy
	relays     []mesh.Relay
	controller mesh.PeerID
}

// does makes a write, and wants this code and text in the answer. Like an agent, it tries again when nobody could be reached: a
// controller whose Lease the API was too slow to renew leaves its relays for a moment.
func (a asker) does(what, method, path, body string, code int, says string) {
	a.t.Helper()
	ctx, cancel := fair.WithTimeout(a.t.Context(), time.Minute)
	defer cancel()
	got, answer, err := a.deputy.Write(ctx, a.relays, []mesh.PeerID{a.controller}, method, path, []byte(body))
	for errors.Is(err, enroll.ErrNobody) && wake.Sleep(ctx, time.Second) {
		a.t.Logf("%s: %v; asking again", what, err)
		got, answer, err = a.deputy.Write(ctx, a.relays, []mesh.PeerID{a.controller}, method, path, []byte(body))
	}
	if err != nil || got != code || !strings.Contains(string(answer), says) {
		a.t.Errorf("%s: %d %s, %v; want %d with %q", what, got, answer, err, code, says)
	}
}

// enrolling is a cluster with KubeEdge's rights, a relay, and a controller that edges can ask, which run starts.
func enrolling(t *testing.T, run func(*kubeapi.Cluster)) (c *kubeapi.Cluster, relay mesh.Relay, controller mesh.PeerID) {
	t.Helper()
	c = kubeEdgeCluster(t)
	key, self := keytest.New(t)
	r, err := relaytest.Start(key, "/ip4/127.0.0.1/tcp/0")
	must(t, err)
	t.Cleanup(func() { r.Close() })
	address := r.Addrs()[0].String()
	relay = mesh.Relay{PeerID: mesh.PeerID(self.String()), Addrs: []string{address}}
	network(t, c, map[string]any{"relays": []string{address + "/p2p/" + self.String()}})
	run(c)
	fair.Eventually(t, patience, "the PodNetwork names the controller", func() error {
		var n api.PodNetwork
		must(t, c.Do(http.MethodGet, kubeapi.Group+"podnetworks/cluster", nil, &n))
		if len(n.Controllers()) != 1 {
			return fmt.Errorf("%v", n.Controllers())
		}
		controller = mesh.PeerID(n.Controllers()[0])
		id, err := peer.Decode(n.Controllers()[0])
		must(t, err)
		r.Knows(id)
		return nil
	})
	return c, relay, controller
}

// enroller starts a controller that edges can ask, as the chart does.
func enroller(t *testing.T) func(*kubeapi.Cluster) {
	return func(c *kubeapi.Cluster) {
		s := startControllers(t, c)
		s.more = []string{"--enroll"}
		s.start("one")
	}
}

// deputyOf asks for node, which has a certificate of the cluster's CA.
func deputyOf(t *testing.T, c *kubeapi.Cluster, node string, key crypto.PrivKey) *deputy.Deputy {
	t.Helper()
	cert, err := c.NodeCertificate(node, time.Now().Add(-time.Hour))
	must(t, err)
	crt, certKey := c.Files(cert)
	return deputy.New(deputy.Config{Key: key, Certificate: crt, CertificateKey: certKey})
}

// On an edge whose cache may only read, an agent registers, claims its block and reports by a controller; nobody there can
// write another node's MeshNode through the cache, nor by the controller.
func TestEdgeAsksController(t *testing.T) {
	t.Parallel() // it mostly waits
	c, relay, controller := enrolling(t, enroller(t))
	must(t, c.CreateNode("edge", "10.244.7.0/24"), c.CreateNode("bare"), c.CreateNode("other", "10.244.8.0/24"),
		c.ServiceAccountCertificate("kubeedge", "cloudcore"))
	cache, err := c.NewEdgeCache(kubeapi.MetaServer, "cloudcore")
	must(t, err)
	t.Cleanup(cache.Close)
	var agents []*agent
	keys := map[string]crypto.PrivKey{}
	for _, node := range []string{"edge", "bare"} {
		key, self := keytest.New(t)
		a := newAgent(t, node, "")
		a.cfg.Server, a.cfg.PeerID, a.cfg.Deputy = cache.URL, mesh.PeerID(self.String()), deputyOf(t, c, node, key)
		keys[node] = key
		agents = append(agents, a)
	}
	for _, a := range agents {
		a.start()
	}
	for _, a := range agents {
		a.sees("bare=10.244.0.0/24 edge=10.244.7.0/24")
		a.source.SetServing(nil)
	}
	fair.Eventually(t, patience, "the MeshNode is Ready", fair.True(func() bool {
		cond := api.FindCondition(meshNode(t, c, "edge").Status.Conditions, "Ready")
		return cond != nil && cond.Status == "True"
	}))
	if m := meshNode(t, c, "edge"); m.Spec.PeerID != string(agents[0].cfg.PeerID) || len(m.Meta.OwnerReferences) != 1 {
		t.Errorf("the MeshNode is %+v", m)
	}

	// What any process of any edge could do before.
	resp, err := http.Post(cache.URL+meshNodesPath, "application/json", strings.NewReader(meshNodeJSON("other", newPeerID(t), "")))
	must(t, err)
	resp.Body.Close()
	if resp.StatusCode != http.StatusForbidden {
		t.Errorf("through the cache another node's MeshNode: %s", resp.Status)
	}
	owner := func(m *api.MeshNode) string { b, _ := json.Marshal(m); return string(b) }
	self := newPeerIDOf(t, keys["edge"])
	edge := asker{t, agents[0].cfg.Deputy.(*deputy.Deputy), []mesh.Relay{relay}, controller}
	edge.does("another node's MeshNode", http.MethodPost, meshNodesPath, owner(&api.MeshNode{Meta: api.Meta{Name: "other"},
		Spec: api.MeshNodeSpec{PeerID: self}}), http.StatusForbidden, "what is the node's own")
	edge.does("its own with another peer ID", http.MethodPost, meshNodesPath, owner(&api.MeshNode{Meta: api.Meta{Name: "edge"},
		Spec: api.MeshNodeSpec{PeerID: newPeerID(t)}}), http.StatusForbidden, "what is the node's own")
	edge.does("another node's status", http.MethodPatch, meshNodesPath+"/bare/status", `{"status":{}}`, http.StatusForbidden, "what is the node's own")
	edge.does("a permission to change its key", http.MethodPatch, meshNodesPath+"/edge",
		`{"metadata":{"annotations":{"network.edgemesh.io/rotate-from":"x"},"labels":{"a":"b"}}}`, http.StatusForbidden, "what is the node's own")
	edge.does("another node's block", http.MethodDelete, "/apis/network.edgemesh.io/v1alpha1/podblocks/10-244-0-0-24",
		`{"preconditions":{"uid":"x"}}`, http.StatusForbidden, "what is the node's own")
	if !c.Loose() {
		edge.does("a block outside of the ranges", http.MethodPost, "/apis/network.edgemesh.io/v1alpha1/podblocks",
			`{"metadata":{"name":"10-1-0-0-24"},"spec":{"cidr":"10.1.0.0/24","nodeName":"edge"}}`, http.StatusUnprocessableEntity, "outside the podCIDRs")
	}
	edge.does("a Node", http.MethodPatch, nodesPath+"/edge", `{}`, http.StatusForbidden, "what is the node's own")

	// A thief with a certificate of the same name and another key.
	key, thiefID := keytest.New(t)
	thief := asker{t, deputyOf(t, c, "edge", key), []mesh.Relay{relay}, controller}
	if !c.Old() { // a policy pins it
		thief.does("a peer ID in place of a pinned one", http.MethodPatch, meshNodesPath+"/edge",
			`{"metadata":{"uid":"`+meshNode(t, c, "edge").Meta.UID+`"},"spec":{"peerID":"`+thiefID.String()+`"}}`, http.StatusForbidden, "rotate-from")
	}
	thief.does("the status", http.MethodPatch, meshNodesPath+"/edge/status", `{"status":{"relayAddresses":["/ip4/6.6.6.6/tcp/1"]}}`, http.StatusForbidden, "has peer ID")
	thief.does("the mode", http.MethodPatch, meshNodesPath+"/edge", `{"metadata":{"annotations":{"network.edgemesh.io/cni-mode":"keep"}}}`, http.StatusForbidden, "has peer ID")
	// One whose certificate is of another CA.
	foreign := ownPKI(t)
	asker{t, deputy.New(deputy.Config{Key: key, Certificate: foreign}), []mesh.Relay{relay}, controller}.does("with a foreign certificate", http.MethodPost, meshNodesPath,
		owner(&api.MeshNode{Meta: api.Meta{Name: "other"}, Spec: api.MeshNodeSpec{PeerID: thiefID.String()}}), http.StatusUnauthorized, "unknown authority")
	// Nobody to ask: the error says so.
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, _, err := edge.deputy.Write(ctx, edge.relays, []mesh.PeerID{mesh.PeerID(newPeerID(t))}, http.MethodPost, meshNodesPath, []byte("{}")); err == nil {
		t.Error("a controller that does not exist answered")
	}
}

func newPeerIDOf(t *testing.T, key crypto.PrivKey) string {
	t.Helper()
	id, err := peer.IDFromPrivateKey(key)
	must(t, err)
	return id.String()
}

// ownPKI is a file with a node's certificate that signs itself, and its key.
func ownPKI(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "system:node:other", Organization: []string{"system:nodes"}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	must(t, err)
	raw, err := x509.MarshalECPrivateKey(key)
	must(t, err)
	path := filepath.Join(t.TempDir(), "node.pem")
	text := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw})...)
	must(t, os.WriteFile(path, text, 0o600))
	return path
}
