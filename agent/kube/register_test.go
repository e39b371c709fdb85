package kube

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"edgemesh/agent/kube/api"
)

// answers is an API that gives prepared answers by "METHOD path"; what it was not
// prepared for is 404.
type answers map[string]string

func (a answers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, ok := a[r.Method+" "+r.URL.Path]
	if !ok {
		w.WriteHeader(http.StatusNotFound)
		body = `{"kind":"Status","code":404,"reason":"NotFound"}`
	}
	_, _ = w.Write([]byte(body))
}

// newRegistrar is one of node a that talks to h; told has what it said was true.
func newRegistrar(t *testing.T, h http.Handler) (r *registrar, told chan any) {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	cfg, err := environment{os.Getenv, "/nonexistent"}.access("", server.URL)
	if err != nil {
		t.Fatal(err)
	}
	c, err := newClient(cfg, "test/1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.close)
	told = make(chan any, 16)
	return &registrar{
		c: c, cfg: Config{NodeName: "a", PeerID: "12D3KooWa", AgentVersion: "v1", Log: slog.New(slog.DiscardHandler)},
		out: told, claims: map[string]*api.PodBlock{}, known: true,
	}, told
}

func encode(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// What is acknowledged is not believed before it was read.
func TestRegistrarIsLiedTo(t *testing.T) {
	const blocks, meshes = "/apis/network.edgemesh.io/v1alpha1/podblocks", "/apis/network.edgemesh.io/v1alpha1/meshnodes"
	own := func(uid, owner string) string {
		b := claim("10.244.0.0/24", owner)
		b.Meta.UID = uid
		return encode(t, b)
	}
	self := func(uid, version string) string {
		m := member("a", "12D3KooWa")
		m.Meta.UID, m.Status.AgentVersion = uid, version
		return encode(t, m)
	}
	claims := func(r *registrar) error {
		w := want{node: node("a", 1), used: &blockSet{}}
		return r.claim(t.Context(), w, []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, 24)
	}
	registers := func(r *registrar) error {
		_, err := r.newMeshNode(t.Context(), want{node: node("a", 1)})
		return err
	}
	reports := func(r *registrar) error {
		return r.status(t.Context(), want{node: node("a", 1)}, member("a", "12D3KooWa"), nil)
	}
	conditions := func(r *registrar) error { return r.condition(t.Context(), want{node: node("a", 1)}) }
	for name, x := range map[string]struct {
		api  answers
		do   func(*registrar) error
		lied bool
	}{
		"a claim that is there":          {answers{"POST " + blocks: own("1", "a"), "GET " + blocks + "/10-244-0-0-24": own("1", "a")}, claims, false},
		"a claim without a UID":          {answers{"POST " + blocks: own("", "a"), "GET " + blocks + "/10-244-0-0-24": own("", "a")}, claims, true},
		"a claim that is nowhere":        {answers{"POST " + blocks: own("1", "a")}, claims, true},
		"a claim that is another's":      {answers{"POST " + blocks: own("1", "a"), "GET " + blocks + "/10-244-0-0-24": own("1", "b")}, claims, true},
		"a claim that is another object": {answers{"POST " + blocks: own("1", "a"), "GET " + blocks + "/10-244-0-0-24": own("2", "a")}, claims, true},
		"a MeshNode that is there":       {answers{"POST " + meshes: self("1", ""), "GET " + meshes + "/a": self("1", "")}, registers, false},
		"a MeshNode that is nowhere":     {answers{"POST " + meshes: self("1", "")}, registers, true},
		"an old MeshNode":                {answers{"POST " + meshes: self("", ""), "GET " + meshes + "/a": self("0", "")}, registers, true},
		"a status that did not change":   {answers{"PATCH " + meshes + "/a/status": self("1", "v0")}, reports, true},
		"a condition that did not":       {answers{"PATCH /api/v1/nodes/a/status": encode(t, node("a", 1))}, conditions, true},
	} {
		t.Run(name, func(t *testing.T) {
			r, told := newRegistrar(t, x.api)
			err := x.do(r)
			var later again
			if x.lied != errors.Is(err, errLied) || !x.lied && err != nil && !errors.As(err, &later) {
				t.Errorf("error %v, a lie: %v", err, x.lied)
			}
			if x.lied == (len(told) > 0) {
				t.Errorf("told %d things, a lie: %v", len(told), x.lied)
			}
		})
	}
}

// No proof without the nonce, a UID, an identity and a version.
func TestProof(t *testing.T) {
	const mesh, ns, nets = "PATCH /apis/network.edgemesh.io/v1alpha1/meshnodes/a", "GET /api/v1/namespaces/kube-system", "GET /apis/network.edgemesh.io/v1alpha1/podnetworks"
	good := map[string]string{
		mesh: `{"metadata":{"name":"a","uid":"1","annotations":{"network.edgemesh.io/proof":"NONCE"}}}`,
		ns:   `{"metadata":{"uid":"cluster"}}`,
		nets: `{"kind":"PodNetworkList","metadata":{"resourceVersion":"9"},"items":[]}`,
	}
	for name, x := range map[string]struct{ at, answer, says string }{
		"":                           {},
		"the old object":             {mesh, `{"metadata":{"name":"a","uid":"1"}}`, "lacks the change"},
		"what was sent":              {mesh, `{"metadata":{"annotations":{"network.edgemesh.io/proof":"NONCE"}}}`, "lacks the change"},
		"somebody else's nonce":      {mesh, `{"metadata":{"name":"a","uid":"1","annotations":{"network.edgemesh.io/proof":"x"}}}`, "lacks the change"},
		"no identity":                {ns, `{}`, "identity"},
		"a list without a version":   {nets, `{"kind":"PodNetworkList","metadata":{},"items":[]}`, "no resource version"},
		"a list that is cut":         {nets, `{"kind":"PodNetworkList"`, "EOF"},
		"an error page, with a 200":  {mesh, `<html>`, "decode"},
		"an error object with a 200": {mesh, `{"kind":"Status","code":500}`, "lacks the change"},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := newRegistrar(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				at := req.Method + " " + req.URL.Path
				answer := good[at]
				if at == x.at {
					answer = x.answer
				}
				if req.Method == http.MethodPatch {
					if req.URL.Query().Get("dryRun") != "All" {
						t.Error("not a dry run")
					}
					var sent api.MeshNode
					if err := json.NewDecoder(req.Body).Decode(&sent); err != nil {
						t.Error(err)
					}
					answer = strings.ReplaceAll(answer, "NONCE", sent.Meta.Annotations[api.ProofAnnotation])
				}
				_, _ = w.Write([]byte(answer))
			}))
			p := &prover{c: r.c, node: "a"}
			got, err := p.prove(t.Context())
			if x.says == "" {
				if err != nil || got != (proof{cluster: "cluster", version: 9, ownUID: "1"}) {
					t.Errorf("got %+v, %v", got, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), x.says) {
				t.Errorf("got %+v, %v; want an error with %q", got, err, x.says)
			}
		})
	}
}

// A list fits its proofs only whole, from the same cluster, and with this node.
func TestFits(t *testing.T) {
	at := proof{cluster: "c", version: 10, ownUID: "m-a"}
	nodes := []api.Object{node("a", 1), node("b", 1)}
	for name, x := range map[string]struct {
		l             listed
		self          string
		before, after proof
		ok            bool
	}{
		"nodes":                       {listed{kind: kindNodes(), items: nodes, rv: 10}, "a", at, at, true},
		"meshnodes":                   {listed{kind: kindMeshNodes(), items: []api.Object{member("a", "x")}, rv: 11}, "a", at, at, true},
		"blocks, none":                {listed{kind: kindPodBlocks(), rv: 11}, "a", at, at, true},
		"everything empty, to reader": {listed{kind: kindNodes(), rv: 11}, "", at, at, true},
		"older than the proof":        {listed{kind: kindNodes(), items: nodes, rv: 9}, "a", at, at, false},
		"no version":                  {listed{kind: kindNodes(), items: nodes}, "a", at, at, false},
		"without this node":           {listed{kind: kindNodes(), items: nodes[1:], rv: 10}, "a", at, at, false},
		"empty":                       {listed{kind: kindNodes(), rv: 10}, "a", at, at, false},
		"another MeshNode of ours":    {listed{kind: kindMeshNodes(), items: []api.Object{meshNode("a", "m-z", 5)}, rv: 11}, "a", at, at, false},
		"no network":                  {listed{kind: kindPodNetworks(), rv: 10}, "a", at, at, false},
		"another cluster after it":    {listed{kind: kindNodes(), items: nodes, rv: 10}, "a", at, proof{cluster: "d", version: 10, ownUID: "m-a"}, false},
		"an older version after it":   {listed{kind: kindNodes(), items: nodes, rv: 10}, "a", at, proof{cluster: "c", version: 9, ownUID: "m-a"}, false},
	} {
		r := &reflector{kind: x.l.kind, self: x.self}
		if err := r.fits(x.l, x.before, x.after); (err == nil) != x.ok || err != nil && !errors.Is(err, errUnproved) {
			t.Errorf("%s: %v, want fitting %v", name, err, x.ok)
		}
	}
}

// A failure is told when it lasts, by its first cause; serving at once.
func TestServe(t *testing.T) {
	r := &registrar{tune: tuning{sustain: time.Hour}}
	first, second := errors.New("no bridge"), errors.New("no route")
	r.serve(first)
	if r.sustained(); !r.known || !errors.Is(r.unserved, first) {
		t.Errorf("a node that never served: %v", r.unserved)
	}
	r.serve(nil)
	if r.unserved != nil {
		t.Errorf("a node that serves: %v", r.unserved)
	}
	r.serve(first)
	var later again
	if err := r.sustained(); !errors.As(err, &later) || r.unserved != nil {
		t.Errorf("a failure just now: %v, %v", r.unserved, err)
	}
	r.serve(nil)
	if err := r.sustained(); err != nil || r.unserved != nil {
		t.Errorf("a failure that passed: %v, %v", r.unserved, err)
	}
	r.tune.sustain = 0
	r.serve(first)
	r.serve(second)
	if err := r.sustained(); err != nil || !errors.Is(r.unserved, first) {
		t.Errorf("a failure that lasts: %v, %v", r.unserved, err)
	}
}
