package kube

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/kubetest"
	"edgemesh/internal/membership/mesh"
)

// fakeDeputy answers every write the same.
type fakeDeputy struct {
	code   int
	answer string
	err    error
	asked  []string
}

func (d *fakeDeputy) Write(_ context.Context, _ []mesh.Relay, _ []mesh.PeerID, method, path string, _ []byte) (int, []byte, error) {
	d.asked = append(d.asked, method+" "+path)
	return d.code, []byte(d.answer), d.err
}

// A deputy is asked for what the cache refuses, and for nothing else; its answer is the API's.
func TestDeputyIsAsked(t *testing.T) {
	const (
		forbidden = `{"kind":"Status","code":403,"reason":"Forbidden","message":"cloudcore cannot create"}`
		exists    = `{"kind":"Status","code":409,"reason":"AlreadyExists","message":"there is one"}`
	)
	for name, x := range map[string]struct {
		api         int
		body        string
		controllers int
		deputy      fakeDeputy
		asked       bool
		good        func(error) bool
	}{
		"the cache writes": {api: 201, body: `{"metadata":{"uid":"cache"}}`, controllers: 1, good: func(err error) bool { return err == nil }},
		"it refuses":       {api: 403, body: forbidden, controllers: 1, deputy: fakeDeputy{code: 200, answer: `{"metadata":{"uid":"deputy"}}`}, asked: true, good: func(err error) bool { return err == nil }},
		"so does the API":  {api: 403, body: forbidden, controllers: 1, deputy: fakeDeputy{code: 409, answer: exists}, asked: true, good: apierrors.IsAlreadyExists},
		"with another text": {api: 403, body: forbidden, controllers: 1, deputy: fakeDeputy{code: 502, answer: "<html>"}, asked: true,
			good: func(err error) bool { return err != nil && !apierrors.IsForbidden(err) }},
		"nobody answers": {api: 403, body: forbidden, controllers: 1, deputy: fakeDeputy{err: errors.New("no relay")}, asked: true,
			good: func(err error) bool {
				return err != nil && strings.Contains(err.Error(), "no relay; a controller is needed because") && !apierrors.IsForbidden(err)
			}},
		"there is no controller": {api: 403, body: forbidden, good: apierrors.IsForbidden},
		"the cache is offline":   {api: 500, body: `{"kind":"Status","code":500}`, controllers: 1, good: apierrors.IsInternalError},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := testRegistrar(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(x.api)
				_, _ = w.Write([]byte(x.body))
			}), false)
			r.cfg.Deputy = &x.deputy
			r.controllers = make([]mesh.PeerID, x.controllers)
			var out api.MeshNode
			err := r.create(t.Context(), api.MeshNodes().Path(""), kubetest.MeshNode("a", "12D3KooWa"), &out)
			if !x.good(err) || (len(x.deputy.asked) > 0) != x.asked {
				t.Errorf("error %v, asked %v", err, x.deputy.asked)
			}
			if want := map[bool]string{true: "deputy", false: "cache"}[x.asked]; err == nil && out.Meta.UID != want {
				t.Errorf("the object is the %s's, want the %s's", out.Meta.UID, want)
			}
		})
	}
}

// A cache that acknowledges a write and stores nothing is found out by reading it back; then the deputy makes the write, and
// the next one is the cache's again.
func TestSwallowedWriteIsTheDeputys(t *testing.T) {
	const meshes = "/apis/network.edgemesh.io/v1alpha1/meshnodes"
	self := kubetest.JSON(t, kubetest.MeshNode("a", "12D3KooWa"))
	deputy := &fakeDeputy{code: http.StatusCreated, answer: self}
	writes := 0
	r, _ := testRegistrar(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch {
		case req.Method == http.MethodPost: // acknowledged, as by a cache that queues for the cloud and loses it
			writes++
			w.WriteHeader(http.StatusCreated)
			_, _ = w.Write([]byte(self))
		case len(deputy.asked) > 0:
			_, _ = w.Write([]byte(self))
		default:
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(`{"kind":"Status","code":404,"reason":"NotFound"}`))
		}
	}), false)
	r.cfg.Deputy, r.controllers = deputy, make([]mesh.PeerID, 1)
	register := func() error {
		_, err := r.binder.create(t.Context(), want{node: kubetest.Node("a", 1)})
		r.heard(err)
		return err
	}
	if err := register(); !errors.Is(err, errLied) || writes != 1 || len(deputy.asked) != 0 {
		t.Fatalf("first: %v, %d writes, asked %v", err, writes, deputy.asked)
	}
	var later again
	if err := register(); !errors.As(err, &later) || writes != 1 || len(deputy.asked) != 1 || deputy.asked[0] != "POST "+meshes {
		t.Fatalf("second: %v, %d writes, asked %v", err, writes, deputy.asked)
	}
	if err := register(); !errors.As(err, &later) || writes != 2 || len(deputy.asked) != 1 {
		t.Errorf("third: %v, %d writes, asked %v", err, writes, deputy.asked)
	}
}
