package kube

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/membership/kube/kubetest"
)

// testRegistrar is one of node a that talks to h; told has what it said was true.
func testRegistrar(t *testing.T, h http.Handler, keeps bool) (r *registrar, told chan any) {
	t.Helper()
	c, err := client.New(client.Access{Server: kubetest.Serve(t, h), LocalUID: os.Geteuid()}, "test/1", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	told = make(chan any, 16)
	r = newRegistrar(c, Config{NodeName: "a", PeerID: "12D3KooWa", AgentVersion: "v1", Keep: keeps, Log: slog.New(slog.DiscardHandler)},
		tuning{}, told, make(chan error, 1), make(chan []string, 1), make(chan api.Place, 1))
	r.reporter.health.serve(nil)
	return r, told
}

// conditioned is a MeshNode with the conditions that a node without a block reports.
func conditioned(t *testing.T, mesh string) string {
	var m api.MeshNode
	if err := json.Unmarshal([]byte(mesh), &m); err != nil {
		t.Fatal(err)
	}
	r := reporter{}
	m.Status.Conditions = []api.Condition{r.blockCondition(want{node: kubetest.Node("a", 1)}, nil), r.readyCondition(want{})}
	return kubetest.JSON(t, &m)
}

// What is acknowledged is not believed before it was read.
func TestRegistrarIsLiedTo(t *testing.T) {
	const blocks, meshes = "/apis/network.edgemesh.io/v1alpha1/podblocks", "/apis/network.edgemesh.io/v1alpha1/meshnodes"
	own := func(uid, owner string) string {
		b := kubetest.PodBlock("10.244.0.0/24", owner)
		b.Meta.UID = uid
		return kubetest.JSON(t, b)
	}
	self := func(uid, version string) string {
		m := kubetest.MeshNode("a", "12D3KooWa")
		m.Meta.UID, m.Status.AgentVersion = uid, version
		return kubetest.JSON(t, m)
	}
	claims := func(r *registrar) error {
		w := want{node: kubetest.Node("a", 1), used: &blockSet{}}
		return r.claimer.claim(t.Context(), w, []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, 24)
	}
	registers := func(r *registrar) error {
		_, err := r.binder.create(t.Context(), want{node: kubetest.Node("a", 1)})
		return err
	}
	reports := func(r *registrar) error {
		r.reporter.place.Addresses = []string{"10.244.0.1"}
		return r.reporter.status(t.Context(), want{node: kubetest.Node("a", 1)}, kubetest.MeshNode("a", "12D3KooWa"), nil)
	}
	conditions := func(r *registrar) error { return r.reporter.condition(t.Context(), want{node: kubetest.Node("a", 1)}) }
	for name, x := range map[string]struct {
		api  kubetest.Answers
		do   func(*registrar) error
		lied bool
	}{
		"a claim that is there":           {kubetest.Answers{"POST " + blocks: own("1", "a"), "GET " + blocks + "/10-244-0-0-24": own("1", "a")}, claims, false},
		"a claim without a UID":           {kubetest.Answers{"POST " + blocks: own("", "a"), "GET " + blocks + "/10-244-0-0-24": own("", "a")}, claims, true},
		"a claim that is nowhere":         {kubetest.Answers{"POST " + blocks: own("1", "a")}, claims, true},
		"a claim that is another's":       {kubetest.Answers{"POST " + blocks: own("1", "a"), "GET " + blocks + "/10-244-0-0-24": own("1", "b")}, claims, true},
		"a claim that is another object":  {kubetest.Answers{"POST " + blocks: own("1", "a"), "GET " + blocks + "/10-244-0-0-24": own("2", "a")}, claims, true},
		"a MeshNode that is there":        {kubetest.Answers{"POST " + meshes: self("1", ""), "GET " + meshes + "/a": self("1", "")}, registers, false},
		"a MeshNode that is nowhere":      {kubetest.Answers{"POST " + meshes: self("1", "")}, registers, true},
		"an old MeshNode":                 {kubetest.Answers{"POST " + meshes: self("", ""), "GET " + meshes + "/a": self("0", "")}, registers, true},
		"a status that did not change":    {kubetest.Answers{"PATCH " + meshes + "/a/status": self("1", "v0")}, reports, true},
		"addresses that an old CRD drops": {kubetest.Answers{"PATCH " + meshes + "/a/status": conditioned(t, self("1", "v1"))}, reports, false},
		"a condition that did not":        {kubetest.Answers{"PATCH /api/v1/nodes/a/status": kubetest.JSON(t, kubetest.Node("a", 1))}, conditions, true},
	} {
		t.Run(name, func(t *testing.T) {
			r, told := testRegistrar(t, x.api, false)
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

// Addresses that the node has no more do not come back when another round begins before what was written is heard.
func TestAddressesStayGone(t *testing.T) {
	var stored api.MeshNode
	r, _ := testRegistrar(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		patch := struct{ Status api.MeshNodeStatus }{}
		if err := json.NewDecoder(req.Body).Decode(&patch); err != nil {
			t.Error(err)
		}
		stored.Status = patch.Status
		_, _ = w.Write([]byte(kubetest.JSON(t, &stored)))
	}), false)
	before := kubetest.MeshNode("a", "12D3KooWa")
	before.Status.Addresses = []string{"10.244.0.1"}
	r.reporter.place = api.Place{Addresses: []string{}}
	for range 2 {
		if err := r.reporter.status(t.Context(), want{node: kubetest.Node("a", 1)}, before, nil); err != nil {
			t.Fatal(err)
		}
		if a := stored.Status.Addresses; len(a) > 0 {
			t.Errorf("the API has %v again", a)
		}
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
		"another nonce":              {mesh, `{"metadata":{"name":"a","uid":"1","annotations":{"network.edgemesh.io/proof":"x"}}}`, "lacks the change"},
		"no identity":                {ns, `{}`, "identity"},
		"a list without a version":   {nets, `{"kind":"PodNetworkList","metadata":{},"items":[]}`, "no resource version"},
		"a list that is cut":         {nets, `{"kind":"PodNetworkList"`, "EOF"},
		"an error page, with a 200":  {mesh, `<html>`, "decode"},
		"an error object with a 200": {mesh, `{"kind":"Status","code":500}`, "lacks the change"},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := testRegistrar(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
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
			}), false)
			p := &prover{c: r.client, node: "a"}
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

// What a round of registration came to is news once: rounds do not cause each other.
func TestLoopHearsOfARoundOnce(t *testing.T) {
	w := newWorld(t)
	refused := registered{errors.New("refused")}
	for i, x := range []struct {
		m    registered
		news bool
	}{{registered{}, false}, {refused, true}, {registered{errors.New("refused")}, false}, {registered{errors.New("other")}, true}, {registered{}, true}, {registered{}, false}} {
		if got := w.loop.take(x.m); got != x.news {
			t.Errorf("%d: %v is news: %t", i, x.m.err, got)
		}
	}
}

// A list fits its proofs only whole, from the same cluster, and with this node.
func TestFits(t *testing.T) {
	at := proof{cluster: "c", version: 10, ownUID: "m-a"}
	nodes := []api.Object{kubetest.Node("a", 1), kubetest.Node("b", 1)}
	for name, x := range map[string]struct {
		l             listed
		self          string
		before, after proof
		ok            bool
	}{
		"nodes":                       {listed{kind: api.Nodes(), items: nodes, rv: 10}, "a", at, at, true},
		"meshnodes":                   {listed{kind: api.MeshNodes(), items: []api.Object{kubetest.MeshNode("a", "x")}, rv: 11}, "a", at, at, true},
		"blocks, none":                {listed{kind: api.PodBlocks(), rv: 11}, "a", at, at, true},
		"everything empty, to reader": {listed{kind: api.Nodes(), rv: 11}, "", at, at, true},
		"older than the proof":        {listed{kind: api.Nodes(), items: nodes, rv: 9}, "a", at, at, false},
		"no version":                  {listed{kind: api.Nodes(), items: nodes}, "a", at, at, false},
		"without this node":           {listed{kind: api.Nodes(), items: nodes[1:], rv: 10}, "a", at, at, false},
		"empty":                       {listed{kind: api.Nodes(), rv: 10}, "a", at, at, false},
		"another MeshNode of ours":    {listed{kind: api.MeshNodes(), items: []api.Object{kubetest.UID(kubetest.MeshNode("a", ""), "m-z")}, rv: 11}, "a", at, at, false},
		"no network":                  {listed{kind: api.PodNetworks(), rv: 10}, "a", at, at, false},
		"another cluster after it":    {listed{kind: api.Nodes(), items: nodes, rv: 10}, "a", at, proof{cluster: "d", version: 10, ownUID: "m-a"}, false},
		"an older version after it":   {listed{kind: api.Nodes(), items: nodes, rv: 10}, "a", at, proof{cluster: "c", version: 9, ownUID: "m-a"}, false},
	} {
		r := &reflector{kind: x.l.kind, self: x.self}
		if err := r.fits(x.l, x.before, x.after); (err == nil) != x.ok || err != nil && !errors.Is(err, errUnproved) {
			t.Errorf("%s: %v, want fitting %v", name, err, x.ok)
		}
	}
}

// A failure is told when it lasts, by its first cause; serving immediately.
func TestServe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &health{sustain: time.Hour}
		first, second := errors.New("no bridge"), errors.New("no route")
		h.serve(first)
		if _ = h.sustained(); !h.known || !errors.Is(h.unserved, first) {
			t.Errorf("a node that never served: %v", h.unserved)
		}
		h.serve(nil)
		if h.unserved != nil {
			t.Errorf("a node that serves: %v", h.unserved)
		}
		h.serve(first)
		var later again
		if err := h.sustained(); !errors.As(err, &later) || later.after != time.Hour || h.unserved != nil {
			t.Errorf("a failure just now: %v, %v", h.unserved, err)
		}
		h.serve(nil)
		if err := h.sustained(); err != nil || h.unserved != nil {
			t.Errorf("a failure that passed: %v, %v", h.unserved, err)
		}
		h.serve(first)
		time.Sleep(time.Minute)
		h.serve(second)
		time.Sleep(time.Hour)
		if err := h.sustained(); err != nil || !errors.Is(h.unserved, first) {
			t.Errorf("a failure that lasts: %v, %v", h.unserved, err)
		}
	})
}

// A warning becomes an event about this node's Node, once that is known; nobody waits for the API.
func TestWarn(t *testing.T) {
	var got []string
	r, _ := testRegistrar(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var e struct {
			Reason, Message string
			InvolvedObject  struct{ Kind, Name string }
		}
		_ = json.NewDecoder(req.Body).Decode(&e)
		got = append(got, strings.Join([]string{req.Method, req.URL.Path, e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Reason, e.Message}, " "))
		w.WriteHeader(http.StatusForbidden)
	}), false)
	r.warn(t.Context(), nil, [2]string{"MeshStranger", "x"})
	r.warn(t.Context(), kubetest.Node("a", 1), [2]string{"MeshStranger", "peer x knocks"})
	if want := "POST /api/v1/namespaces/default/events Node a MeshStranger peer x knocks"; len(got) != 1 || got[0] != want {
		t.Errorf("%q, want %q", got, want)
	}
	s := &Source{warnings: make(chan [2]string, 2)}
	for range 3 {
		s.Warn("MeshStranger", "x")
	}
	if len(s.warnings) != 2 {
		t.Errorf("%d wait", len(s.warnings))
	}
}

// What a node finds broken of itself is its MeshNode's condition; before it has said anything, what was there stays.
func TestHealthyCondition(t *testing.T) {
	old := []api.Condition{{Type: healthyType, Status: "False", Reason: "Uplink", Message: "no route"}}
	for name, c := range map[string]struct {
		said *[2]string
		old  []api.Condition
		want string
	}{
		"nothing said, none there": {nil, nil, ""},
		"nothing said":             {nil, old, "False Uplink no route"},
		"nothing broken":           {&[2]string{}, old, "True NothingBroken nothing is broken on this node"},
		"broken":                   {&[2]string{"RelayUnreachable", "R1 does not answer"}, old, "False RelayUnreachable R1 does not answer"},
	} {
		got := ""
		for _, x := range (&reporter{healthy: c.said}).healthyCondition(c.old) {
			got += x.Status + " " + x.Reason + " " + x.Message
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// A webhook that an unreleased version left behind is named with what removes it; another's is not ours to remove.
func TestAbandonedWebhook(t *testing.T) {
	for webhook, ours := range map[string]bool{"objects.network.edgemesh.io": true, "x.example.org": false} {
		c, err := client.New(client.Access{LocalUID: os.Geteuid(), Server: kubetest.Serve(t, says(http.StatusInternalServerError, "application/json",
			`{"kind":"Status","code":500,"reason":"InternalError","message":"failed calling webhook \"`+webhook+`\": connection refused"}`))}, "test/1", nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		err = c.Create(t.Context(), "/x", nil, new(api.MeshNode))
		if err == nil || strings.Contains(err.Error(), "kubectl delete validatingwebhookconfiguration edgemesh") != ours {
			t.Errorf("%s: %v", webhook, err)
		}
	}
}

// Where the API server does not guard the objects, a node says so until the operator trusts every node; what has no version is left alone.
func TestUnguarded(t *testing.T) {
	for version, said := range map[string]bool{"v1.28.15": true, "v1.29.14+k3s1": true, "v1.30.0": false, "v1.35.4": false, "": false} {
		r, _ := testRegistrar(t, versioned(version, http.NotFoundHandler()), false)
		says := func(n *api.PodNetwork) bool {
			var later again
			err := r.unguarded(t.Context(), n)
			if errors.As(err, &later) {
				if later.after <= 0 || later.after > versionAge {
					t.Errorf("%s: %v", version, err)
				}
				return false // it is asked again
			}
			if err != nil && !strings.Contains(err.Error(), "on Kubernetes "+version+" any node") {
				t.Errorf("%s: %v", version, err)
			}
			return err != nil
		}
		if says(nil) || says(&api.PodNetwork{Spec: api.PodNetworkSpec{TrustedNodes: true}}) {
			t.Errorf("%s: without a PodNetwork, or with trusted nodes", version)
		}
		for name, before := range map[string]string{"at first": "", "after an upgrade": "v1.29.0", "after a step back": "v1.35.4"} {
			r.version, r.asked = before, time.Now().Add(-versionAge-time.Second)
			if got := says(&api.PodNetwork{}); got != said && (version != "" || before == "") {
				t.Errorf("%s, %s: %v", version, name, got)
			}
		}
	}
}
