// Package kubetest has an API server that answers as a test sets it up, and makers of the
// objects that tests of the package kube are about.
package kubetest

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"edgemesh/internal/keytest"
	"edgemesh/internal/membership/keep"
	"edgemesh/internal/membership/kube/api"
)

// Answers is an API that gives prepared answers by "METHOD path"; what it was not
// prepared for is 404.
type Answers map[string]string

// ServeHTTP implements http.Handler.
func (a Answers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, ok := a[r.Method+" "+r.URL.Path]
	if !ok {
		w.WriteHeader(http.StatusNotFound)
		body = `{"kind":"Status","code":404,"reason":"NotFound"}`
	}
	_, _ = w.Write([]byte(body))
}

// Serve serves h until the test ends, and returns its URL.
func Serve(t *testing.T, h http.Handler) string {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return server.URL
}

// ServeAs is Serve by a program of another user, as far as the kernel shows: the user who accepts a connection owns it.
func ServeAs(t *testing.T, uid int, h http.Handler) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: to be another user needs root")
	}
	server := httptest.NewUnstartedServer(h)
	server.Listener = userListener{server.Listener.(*net.TCPListener), uid}
	server.Start()
	t.Cleanup(server.Close)
	return server.URL
}

type userListener struct {
	*net.TCPListener
	uid int
}

// Accept implements net.Listener. The file system's user (setfsuid(2)) is the thread's alone.
func (l userListener) Accept() (net.Conn, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	root, err := unix.SetfsuidRetUid(l.uid)
	if err != nil {
		return nil, err
	}
	defer func() { _, _ = unix.SetfsuidRetUid(root) }()
	return l.TCPListener.Accept()
}

// JSON is v as an API sends it.
func JSON(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// PeerIDs makes n peer IDs.
func PeerIDs(t testing.TB, n int) []string {
	t.Helper()
	var out []string
	for range n {
		_, id := keytest.New(t)
		out = append(out, id.String())
	}
	return out
}

// At is the time of day of age seconds into 2026: objects with a lower age came first.
func At(age int) *time.Time {
	at := time.Date(2026, 1, 1, 0, 0, age, 0, time.UTC)
	return &at
}

// Node is a Node of that age with podCIDRs.
func Node(name string, age int, cidrs ...string) *api.Node {
	return &api.Node{
		Meta: api.Meta{Name: name, UID: "n-" + name, ResourceVersion: "5", CreationTimestamp: At(age)},
		Spec: api.NodeSpec{PodCIDRs: cidrs},
	}
}

// MeshNode binds a node to a peer ID; its creation time is not known.
func MeshNode(name, peerID string) *api.MeshNode {
	return &api.MeshNode{
		Meta: api.Meta{Name: name, UID: "m-" + name, ResourceVersion: "6"},
		Spec: api.MeshNodeSpec{PeerID: peerID},
	}
}

// Aged sets when a MeshNode was made.
func Aged(age int, m *api.MeshNode) *api.MeshNode {
	m.Meta.CreationTimestamp = At(age)
	return m
}

// Keeping makes m the MeshNode of a node that keeps another plugin.
func Keeping(m *api.MeshNode) *api.MeshNode {
	m.Meta.Annotations = map[string]string{api.ModeAnnotation: api.ModeKeep}
	return m
}

// PodBlock is owner's claim of a block.
func PodBlock(cidr, owner string) *api.PodBlock {
	return &api.PodBlock{
		Meta: api.Meta{Name: api.BlockName(netip.MustParsePrefix(cidr)), UID: "b-" + cidr, ResourceVersion: "7"},
		Spec: api.PodBlockSpec{CIDR: cidr, NodeName: owner},
	}
}

// PodNetwork is the cluster's, with these ranges.
func PodNetwork(cidrs ...string) *api.PodNetwork {
	return &api.PodNetwork{
		Meta: api.Meta{Name: api.NetworkName, UID: "net", ResourceVersion: "4"},
		Spec: api.PodNetworkSpec{PodCIDRs: cidrs},
	}
}

// BlockAffinity is Calico's word that owner has a block.
func BlockAffinity(cidr, owner, state string) *keep.BlockAffinity {
	return &keep.BlockAffinity{
		Meta: api.Meta{Name: owner + "-" + strings.NewReplacer(".", "-", "/", "-").Replace(cidr), UID: "a-" + cidr, ResourceVersion: "8"},
		Spec: keep.BlockAffinitySpec{Node: owner, CIDR: cidr, State: state, Deleted: "false"},
	}
}

// CiliumNode is Cilium's word on the blocks of the node of that name.
func CiliumNode(name string, cidrs ...string) *keep.CiliumNode {
	n := &keep.CiliumNode{Meta: api.Meta{Name: name, UID: "c-" + name, ResourceVersion: "9"}}
	n.Spec.IPAM.PodCIDRs = cidrs
	return n
}

// Version gives o another resource version and returns it.
func Version[T api.Object](o T, version int) T {
	o.Metadata().ResourceVersion = strconv.Itoa(version)
	return o
}

// UID gives o another identity and returns it.
func UID[T api.Object](o T, uid string) T {
	o.Metadata().UID = uid
	return o
}

// Prefixes parses what must be prefixes.
func Prefixes(t testing.TB, list ...string) []netip.Prefix {
	t.Helper()
	var out []netip.Prefix
	for _, text := range list {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, p)
	}
	return out
}
