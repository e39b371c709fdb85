package kubeapi_test

import (
	"crypto/rand"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/membership/signed"
	"edgemesh/test/fair"
	"edgemesh/test/kubeapi"
)

// The controller signs members with its rights of the chart, also claimed blocks; an agent that pins the key which has delegated to it
// takes these statements from the NodeRecords and the delegation from the PodNetwork, and nothing that the API says otherwise.
func TestSignedMembers(t *testing.T) {
	t.Parallel()
	c := emptyCluster(t)
	must(t, c.Signing(true))
	t.Cleanup(func() { must(t, c.Signing(false)) })
	network(t, c, nil)
	must(t, c.CreateNode("a"))
	b := newPeerID(t)
	must(t, c.CreateMember("b", b, "10.244.2.0/24"))
	a := tokenAgent(t, c, "a", c.URL)
	log := a.listens()
	a.start() // claims a block
	s := &controllers{}
	*s = *startControllers(t, c)
	s.more = []string{"--sign"}
	s.start("one")
	log.from(t, "noderecords")

	key, _, err := crypto.GenerateEd25519Key(rand.Reader)
	must(t, err)
	operator, err := peer.IDFromPrivateKey(key)
	must(t, err)
	var delegate peer.ID
	fair.Eventually(t, patience, "both records have a statement", fair.True(func() bool {
		var got api.NodeRecord
		for _, name := range []string{"a", "b"} {
			if err := c.Do(http.MethodGet, recordsPath+"/"+name, nil, &got); err != nil || got.Spec.Signed == "" {
				return false
			}
		}
		x, err := signed.Read(got.Spec.Signed)
		must(t, err)
		delegate = x.Signer
		return true
	}))
	grant, err := signed.Sign(signed.Statement{Kind: signed.Delegation, ID: delegate, Epoch: signed.Now(0), Expires: 1 << 40,
		Blocks: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}, key)
	must(t, err, c.Patch(kubeapi.Group+"podnetworks/cluster", map[string]any{"spec": map[string]any{"signed": []string{grant.String()}}}))

	book := signed.NewBook([]peer.ID{operator})
	counts := func() string {
		a.mu.Lock()
		state := a.state
		a.mu.Unlock()
		_, _ = book.Add(state.Signed...)
		out, bad := book.Apply(state, "")
		var text []string
		for _, n := range out.Admitted().Nodes {
			text = append(text, fmt.Sprintf("%s=%v %s", n.Name, n.PodCIDRs[0], n.PeerID))
		}
		return strings.Join(text, ", ") + fmt.Sprint(bad)
	}
	want := fmt.Sprintf("a=%s %s, b=10.244.2.0/24 %s[]", "10.244.0.0/24", a.cfg.PeerID, b)
	fair.Eventually(t, patience, "both are members by their statements", fair.True(func() bool { return counts() == want }))

	// The API says that another key is b: the controller that runs does not sign that, nor once it has restarted.
	must(t, c.Delete(kubeapi.Group+"meshnodes/b"), c.CreateMeshNode("b", newPeerID(t)))
	fair.Eventually(t, patience, "the agent hears of the other key", fair.True(func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		n, ok := a.state.Node("b")
		return ok && n.PeerID != mesh.PeerID(b)
	}))
	for range 2 {
		for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) { // sleep: it stays meanwhile
			if got := counts(); !strings.HasPrefix(got, strings.TrimSuffix(want, "[]")) || !strings.Contains(got, "the source says peer ID") {
				t.Fatalf("%s\nwant %s", got, want)
			}
		}
		s.kill("one")
		s.start("one")
	}

	// A Node that is deleted while no controller leads, and its record by the garbage collector: the next one signs that it is gone.
	s.kill("one")
	must(t, c.Delete(nodesPath+"/b"), c.Delete(recordsPath+"/b"))
	s.start("one")
	fair.Eventually(t, patience, "b is signed as gone", fair.True(func() bool {
		var got api.PodNetwork
		must(t, c.Do(http.MethodGet, kubeapi.Group+"podnetworks/cluster", nil, &got))
		return slices.ContainsFunc(got.Status.Signed, func(text string) bool {
			x, err := signed.Read(text)
			return err == nil && x.Gone() && x.Name == "b"
		})
	}))
}
