package kube

import (
	"net/http"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"edgemesh/internal/membership/keep"
	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/kubetest"
)

// plugins answers the lists of other plugins' kinds; what is not in lists is absent.
func (w *world) plugins(proved bool, lists map[string][]api.Object) {
	for _, k := range keep.Kinds() {
		m := listed{kind: k, items: lists[k.Name], rv: w.rv}
		if proved {
			m.proof = &proof{cluster: w.uid, version: w.rv, ownUID: "m-a"}
		}
		if lists[k.Name] == nil {
			m.missing = &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound, Message: "not found"}}
		}
		w.loop.take(m)
	}
	w.loop.update()
}

// keeping is a world where c's pods are another plugin's.
func keeping(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	kubetest.Keeping(w.lists["meshnodes"][2].(*api.MeshNode))
	return w
}

func TestOtherPluginsAreNotAskedForWithoutNeed(t *testing.T) {
	w := newWorld(t)
	w.list(true, w.lists)
	w.is(allThree)
	if len(w.followed) > 0 {
		t.Errorf("followed %v, and nobody has another plugin", w.followed)
	}
}

// Calico's blocks of a node whose pods it has are the node's, whatever the cluster's
// allocator gave; they come and go.
func TestCalicoBlocks(t *testing.T) {
	w := keeping(t)
	w.list(true, w.lists)
	w.is(withoutC) // nothing is known yet, and its podCIDRs may be wrong
	w.plugins(true, map[string][]api.Object{"blockaffinities": {
		kubetest.BlockAffinity("10.244.90.0/26", "c", "confirmed"), kubetest.BlockAffinity("10.244.91.0/26", "c", "pending"), kubetest.BlockAffinity("10.244.92.0/26", "b", "confirmed"),
		kubetest.BlockAffinity("192.168.7.0/26", "c", "confirmed")}})
	w.is(withoutC + " c=10.244.90.0/26")
	if strings.Join(w.followed, " ") != "blockaffinities ciliumnodes" {
		t.Errorf("followed %v", w.followed)
	}
	if !strings.Contains(w.errs[len(w.errs)-1], "192.168.7.0/26") {
		t.Errorf("a pool outside of the PodNetwork is not reported: %q", w.errs)
	}
	second := kubetest.Version(kubetest.BlockAffinity("10.244.93.64/26", "c", "confirmed"), 150)
	w.watch(keep.Kinds()[0], added, second)
	w.is(withoutC + " c=10.244.90.0/26 c=10.244.93.64/26")
	given := *second
	given.Meta.ResourceVersion, given.Spec.Deleted = "200", "true"
	w.watch(keep.Kinds()[0], modified, &given)
	w.is(withoutC + " c=10.244.90.0/26")
	// A cache that lost them proves nothing.
	w.plugins(false, map[string][]api.Object{"blockaffinities": {}, "ciliumnodes": {}})
	w.is(withoutC + " c=10.244.90.0/26")
	w.rv = 300
	w.plugins(true, map[string][]api.Object{"blockaffinities": {}, "ciliumnodes": {}})
	w.is(allThree)
	// Back to our plugin: what is left of Calico is nobody's.
	w.plugins(true, map[string][]api.Object{"blockaffinities": {kubetest.BlockAffinity("10.244.90.0/26", "c", "confirmed")}})
	own := kubetest.Version(kubetest.MeshNode("c", w.lists["meshnodes"][2].(*api.MeshNode).Spec.PeerID), 310)
	w.watch(api.MeshNodes(), modified, own)
	w.is(allThree)
}

func TestCiliumBlocks(t *testing.T) {
	w := keeping(t)
	w.list(true, w.lists)
	n := kubetest.CiliumNode("c", "10.244.90.0/24", "fd00::/64")
	n.Spec.IPAM.Pools.Allocated = []struct {
		CIDRs []string `json:"cidrs"`
	}{{CIDRs: []string{"10.244.91.0/24", "bad"}}}
	w.plugins(true, map[string][]api.Object{"ciliumnodes": {n, kubetest.CiliumNode("b", "10.244.99.0/24")}})
	w.is(withoutC + " c=10.244.90.0/24 c=10.244.91.0/24")
}

// What another plugin's agents write takes nobody's block.
func TestPluginBlocksComeLast(t *testing.T) {
	w := keeping(t)
	w.list(true, w.lists)
	w.plugins(true, map[string][]api.Object{"blockaffinities": {kubetest.BlockAffinity("10.244.1.0/26", "c", "confirmed"), kubetest.BlockAffinity("10.244.90.0/26", "c", "confirmed")}})
	w.is(withoutC + " c=10.244.90.0/26")
	if !strings.Contains(w.errs[len(w.errs)-1], "10.244.1.0/26 overlaps 10.244.1.0/24 of node a") {
		t.Errorf("not reported: %q", w.errs)
	}
}

// A restart, or an API that does not answer, changes nothing for a node that has
// blocks; a new one gets the cluster's when nobody can say more.
func TestPluginsThatCannotBeAsked(t *testing.T) {
	w := keeping(t)
	w.list(true, w.lists)
	w.plugins(true, map[string][]api.Object{"blockaffinities": {kubetest.BlockAffinity("10.244.90.0/26", "c", "confirmed")}})
	had := w.loop.known.last
	w.restart(&had)
	w.list(true, w.lists)
	w.is(withoutC + " c=10.244.90.0/26")
	w.plugins(true, nil) // Calico is gone
	w.is(allThree)

	w = keeping(t)
	w.list(true, w.lists)
	w.is(withoutC)
	w.loop.take(trouble{kind: keep.Kinds()[0], err: apierrors.NewGenericServerResponse(http.StatusBadRequest, "GET", schema.GroupResource{}, "", "can not cache for", 0, true)})
	w.loop.update()
	w.is(allThree)

	// Rights that are lost later take nothing away.
	w = keeping(t)
	w.list(true, w.lists)
	w.plugins(true, map[string][]api.Object{"blockaffinities": {kubetest.BlockAffinity("10.244.90.0/26", "c", "confirmed")}})
	w.loop.take(listed{kind: keep.Kinds()[0], missing: &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: "forbidden"}}})
	w.loop.update()
	w.is(withoutC + " c=10.244.90.0/26")
}

// A Node's annotations are many and large: only those of plugins, on the own Node.
func TestAnnotations(t *testing.T) {
	w := newWorld(t)
	for _, o := range w.lists["nodes"] {
		o.Metadata().Annotations = map[string]string{"flannel.alpha.coreos.com/backend-type": "vxlan", "csi.volume.kubernetes.io/nodeid": "{}"}
		trim(o)
	}
	if w.source.Annotations() != nil {
		t.Error("annotations before anything was heard")
	}
	w.list(true, w.lists)
	if got := w.source.Annotations(); len(got) != 1 || got["flannel.alpha.coreos.com/backend-type"] != "vxlan" {
		t.Errorf("own annotations: %v", got)
	}
	if n := w.loop.known.node("b"); n.Meta.Annotations != nil {
		t.Errorf("another Node's take memory: %v", n.Meta.Annotations)
	}
}

// The registrar of a node that keeps its plugin says so, and claims no block that
// the plugin would not use.
func TestKeepIsRegistered(t *testing.T) {
	const meshes = "/apis/network.edgemesh.io/v1alpha1/meshnodes"
	plain, bound := kubetest.MeshNode("a", "12D3KooWa"), kubetest.Keeping(kubetest.MeshNode("a", "12D3KooWa"))
	plain.Meta.OwnerReferences = (&writer{}).owner(kubetest.Node("a", 1))
	bound.Meta.OwnerReferences = plain.Meta.OwnerReferences
	r, _ := testRegistrar(t, kubetest.Answers{"PATCH " + meshes + "/a": kubetest.JSON(t, bound), "GET " + meshes + "/a": kubetest.JSON(t, bound)}, true)
	got, err := r.binder.bind(t.Context(), want{node: kubetest.Node("a", 1), mesh: plain})
	if err != nil || !got.Kept() {
		t.Errorf("%+v, %v", got, err)
	}
	for _, w := range []want{
		{node: kubetest.Node("a", 1), network: kubetest.PodNetwork("10.244.0.0/16")},
		{node: kubetest.Node("a", 1), network: kubetest.PodNetwork("10.244.0.0/16"), complete: true, plugin: kubetest.Prefixes(t, "10.244.90.0/26")},
	} {
		w.ranges, w.used = kubetest.Prefixes(t, "10.244.0.0/16"), &blockSet{}
		if err := r.claimer.podBlocks(t.Context(), w); err != nil {
			t.Errorf("complete %v: a claim was tried: %v", w.complete, err)
		}
	}
	c := r.reporter.blockCondition(want{node: kubetest.Node("a", 1), plugin: kubetest.Prefixes(t, "10.244.90.0/26"), blocks: kubetest.Prefixes(t, "10.244.90.0/26")}, nil)
	if c.Status != "True" || c.Reason != "FromPlugin" {
		t.Errorf("condition %+v", c)
	}
}
