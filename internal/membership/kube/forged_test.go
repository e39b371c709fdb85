package kube

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"
	"testing"
	"time"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/membership/kube/kubetest"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/membership/snapshot"
)

// forger answers as an API server does, dry runs included, with a membership of its own.
type forger struct {
	t     *testing.T
	items map[string][]api.Object // by plural
}

func (f forger) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	kinds := map[string]string{"nodes": "Node", "meshnodes": "MeshNode", "podblocks": "PodBlock", "podnetworks": "PodNetwork"}
	name := path.Base(r.URL.Path)
	switch {
	case r.Method == http.MethodPatch:
		body, _ := io.ReadAll(r.Body)
		fmt.Fprint(w, strings.Replace(string(body), `"metadata":{`, `"metadata":{"name":"a","uid":"m-a",`, 1))
	case name == "kube-system":
		fmt.Fprint(w, `{"metadata":{"uid":"c"}}`)
	case r.URL.Query().Has("watch"):
		<-r.Context().Done()
	case kinds[name] != "":
		var items []string
		for _, o := range f.items[name] {
			items = append(items, kubetest.JSON(f.t, o))
		}
		fmt.Fprintf(w, `{"kind":"%sList","metadata":{"resourceVersion":"99"},"items":[%s]}`, kinds[name], strings.Join(items, ","))
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

// A program of another user takes the port of the node's API cache and serves a membership of its own, with its peer ID in place
// of a neighbour's: the last good one stays. Where the operator has named that user, the same program is believed.
func TestCacheTakenByAnotherUser(t *testing.T) {
	const squatter = 65534
	ids := kubetest.PeerIDs(t, 3)
	forged := forger{t, map[string][]api.Object{
		"nodes":       {kubetest.Node("a", 1, "10.244.1.0/24"), kubetest.Node("b", 2, "10.244.2.0/24")},
		"meshnodes":   {kubetest.MeshNode("a", ids[0]), kubetest.MeshNode("b", ids[2])},
		"podnetworks": {kubetest.PodNetwork("10.244.0.0/16")},
	}}
	for name, x := range map[string]struct {
		localUID int
		want     string
	}{"another user": {0, ids[1]}, "the user that the operator named": {squatter, ids[2]}} {
		t.Run(name, func(t *testing.T) {
			cfg := Config{Access: client.Access{Server: kubetest.ServeAs(t, squatter, forged), LocalUID: x.localUID}, NodeName: "a", StateDir: t.TempDir(), PeerID: mesh.PeerID(ids[0])}
			known := mesh.State{Encryption: mesh.EncryptionAuto, PodCIDRs: kubetest.Prefixes(t, "10.244.0.0/16"), Nodes: []mesh.Node{
				{Name: "a", PeerID: mesh.PeerID(ids[0]), PodCIDRs: kubetest.Prefixes(t, "10.244.1.0/24")},
				{Name: "b", PeerID: mesh.PeerID(ids[1]), PodCIDRs: kubetest.Prefixes(t, "10.244.2.0/24")},
			}}
			if err := snapshot.Save(cfg.StateDir, known); err != nil {
				t.Fatal(err)
			}
			s, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			state, _, err := s.Start(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			var refused error
			s.Watch(ctx, func(now mesh.State) {
				if state = now; x.localUID != 0 {
					cancel()
				}
			}, func(err error) {
				if refused = err; x.localUID == 0 {
					cancel()
				}
			})
			if b, _ := state.Node("b"); string(b.PeerID) != x.want {
				t.Errorf("b is %s, want %s (%v)", b.PeerID, x.want, refused)
			}
			if says := fmt.Sprint(refused); x.localUID == 0 && !strings.Contains(says, "runs as user 65534") {
				t.Errorf("the operator reads %q", says)
			}
		})
	}
}
