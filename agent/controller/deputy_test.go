package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"edgemesh/internal/keytest"
	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/kubetest"
	"edgemesh/tunnel/p2p/admission/enroll"
)

// fakeWrites has some objects, and takes down what is written.
type fakeWrites struct {
	objects map[string]any
	wrote   []string
}

func (f *fakeWrites) Get(_ context.Context, path string, out any) error {
	o, ok := f.objects[path]
	if !ok {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound}}
	}
	b, err := json.Marshal(o)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, out)
}

func (f *fakeWrites) note(method, path string, in any) error {
	b, err := json.Marshal(in)
	f.wrote = append(f.wrote, method+" "+path[strings.LastIndex(path, "v1alpha1/")+9:]+" "+string(b))
	return err
}

func (f *fakeWrites) Create(_ context.Context, path string, in, _ any) error {
	return f.note("POST", path, in)
}

func (f *fakeWrites) Patch(_ context.Context, path, _ string, _ url.Values, in, _ any) error {
	return f.note("PATCH", path, in)
}

func (f *fakeWrites) Remove(_ context.Context, path, uid string) error {
	return f.note("DELETE", path, uid)
}

// Of what a proved node asks for, what is its own is written; all else is refused, whatever it is mixed with.
func TestGate(t *testing.T) {
	_, self := keytest.New(t)
	_, other := keytest.New(t)
	const root = "/apis/network.edgemesh.io/v1alpha1/"
	mine, theirs := kubetest.PodBlock("10.244.1.0/24", "a"), kubetest.PodBlock("10.244.2.0/24", "b")
	taken := kubetest.MeshNode("c", other.String())
	objects := map[string]any{
		"/api/v1/nodes/a": kubetest.Node("a", 1), root + "meshnodes/a": kubetest.MeshNode("a", self.String()), root + "meshnodes/c": taken,
		root + "podblocks/10-244-1-0-24": mine, root + "podblocks/10-244-2-0-24": theirs,
	}
	uid := kubetest.Node("a", 1).Meta.UID
	owner := fmt.Sprintf(`"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"a","uid":%q}]`, uid)
	const as, kind = `"apiVersion":"network.edgemesh.io/v1alpha1",`, `"kind":`
	for name, x := range map[string]struct {
		node, method, path, body string
		code                     int
		wrote                    string
	}{
		"registers": {"a", "POST", "meshnodes", `{"metadata":{"name":"a","ownerReferences":[{"uid":"bogus"}],"annotations":{"network.edgemesh.io/rotate-from":"x"}},"spec":{"peerID":"SELF"}}`, 200,
			`POST meshnodes {` + as + kind + `"MeshNode","metadata":{"name":"a",` + owner + `},"spec":{"peerID":"SELF"}}`},
		"as another node":       {"a", "POST", "meshnodes", `{"metadata":{"name":"b"},"spec":{"peerID":"SELF"}}`, 403, ""},
		"with another's key":    {"a", "POST", "meshnodes", `{"metadata":{"name":"a"},"spec":{"peerID":"OTHER"}}`, 403, ""},
		"without a Node":        {"gone", "POST", "meshnodes", `{"metadata":{"name":"gone"},"spec":{"peerID":"SELF"}}`, 404, ""},
		"a field nobody knows":  {"a", "POST", "meshnodes", `{"metadata":{"name":"a","finalizers":["x"]},"spec":{"peerID":"SELF"}}`, 403, ""},
		"rubbish":               {"a", "POST", "meshnodes", `[`, 403, ""},
		"the mode":              {"a", "PATCH", "meshnodes/a", `{"metadata":{"uid":"u","annotations":{"network.edgemesh.io/cni-mode":"keep","network.edgemesh.io/rotate-from":"x"}}}`, 200, `PATCH meshnodes/a {"metadata":{"annotations":{"network.edgemesh.io/cni-mode":"keep"},"uid":"u"}}`},
		"the mode of another":   {"c", "PATCH", "meshnodes/c", `{"metadata":{"annotations":{"network.edgemesh.io/cni-mode":"keep"}}}`, 403, ""},
		"another owner":         {"a", "PATCH", "meshnodes/a", `{"metadata":{"ownerReferences":[]}}`, 403, ""},
		"another's peer ID":     {"a", "PATCH", "meshnodes/a", `{"spec":{"peerID":"OTHER"}}`, 403, ""},
		"its own, for policy":   {"c", "PATCH", "meshnodes/c", `{"metadata":{"uid":"u"},"spec":{"peerID":"SELF"}}`, 200, `PATCH meshnodes/c {"metadata":{"uid":"u"},"spec":{"peerID":"SELF"}}`},
		"another's MeshNode":    {"a", "PATCH", "meshnodes/c", `{"metadata":{}}`, 403, ""},
		"its status":            {"a", "PATCH", "meshnodes/a/status", `{"metadata":{"uid":"u"},"status":{"agentVersion":"v1","podCIDRs":null,"relayAddresses":null,"addresses":null}}`, 200, `PATCH meshnodes/a/status {"metadata":{"uid":"u"},"status":{"agentVersion":"v1","podCIDRs":null,"relayAddresses":null,"addresses":null}}`},
		"another's status":      {"a", "PATCH", "meshnodes/c/status", `{"status":{}}`, 403, ""},
		"a registered one's":    {"c", "PATCH", "meshnodes/c/status", `{"status":{}}`, 403, ""},
		"claims":                {"a", "POST", "podblocks", `{"metadata":{"name":"10-244-9-0-24"},"spec":{"cidr":"10.244.9.0/24","nodeName":"a"}}`, 200, `POST podblocks {` + as + kind + `"PodBlock","metadata":{"name":"10-244-9-0-24",` + owner + `},"spec":{"cidr":"10.244.9.0/24","nodeName":"a"}}`},
		"claims for another":    {"a", "POST", "podblocks", `{"metadata":{"name":"10-244-9-0-24"},"spec":{"cidr":"10.244.9.0/24","nodeName":"b"}}`, 403, ""},
		"by another name":       {"a", "POST", "podblocks", `{"metadata":{"name":"x"},"spec":{"cidr":"10.244.9.0/24","nodeName":"a"}}`, 403, ""},
		"not registered":        {"b", "POST", "podblocks", `{"metadata":{"name":"10-244-9-0-24"},"spec":{"cidr":"10.244.9.0/24","nodeName":"b"}}`, 404, ""},
		"releases":              {"a", "DELETE", "podblocks/10-244-1-0-24", `{"preconditions":{"uid":"` + mine.Meta.UID + `"}}`, 200, `DELETE podblocks/10-244-1-0-24 "` + mine.Meta.UID + `"`},
		"releases another":      {"a", "DELETE", "podblocks/10-244-2-0-24", `{"preconditions":{"uid":"` + theirs.Meta.UID + `"}}`, 403, ""},
		"deletes its MeshNode":  {"a", "DELETE", "meshnodes/a", `{}`, 403, ""},
		"a path with more":      {"a", "DELETE", "podblocks/10-244-1-0-24/status", `{}`, 403, ""},
		"another kind":          {"a", "PATCH", "podnetworks/cluster", `{}`, 403, ""},
		"a name that is a path": {"a/status", "PATCH", "meshnodes/a/status", `{}`, 403, ""},
	} {
		t.Run(name, func(t *testing.T) {
			names := strings.NewReplacer("SELF", self.String(), "OTHER", other.String())
			f := &fakeWrites{objects: objects}
			d := &deputy{api: f, log: slog.New(slog.DiscardHandler)}
			a := d.write(t.Context(), enroll.Edge{Node: x.node, Peer: self}, enroll.Request{Method: x.method, Path: root + x.path, Body: []byte(names.Replace(x.body))})
			if got := strings.Join(f.wrote, "\n"); a.Code != x.code || got != names.Replace(x.wrote) {
				t.Errorf("code %d, %s\nwrote %s\nwant %d, %s", a.Code, a.Body, got, x.code, names.Replace(x.wrote))
			}
			var st metav1.Status
			if x.code != 200 && (json.Unmarshal(a.Body, &st) != nil || st.Kind != "Status" || int(st.Code) != x.code) {
				t.Errorf("the answer is no Status: %s", a.Body)
			}
		})
	}
	var _ writes = (*fakeWrites)(nil)
	if api.MeshNodes().Path("") != root+"meshnodes" {
		t.Fatal("the paths here are not the API's")
	}
}
