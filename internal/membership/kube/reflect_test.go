package kube

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/client"
)

// After a watch that broke off, only the same history is taken up where it was.
func TestResume(t *testing.T) {
	for name, x := range map[string]struct {
		cluster, version string
		code             int // of the dry run, 0: 200
		relist, retry    bool
	}{
		"the same":             {"c", "100", 0, false, false},
		"later":                {"c", "200", 0, false, false},
		"a backup":             {"c", "99", 0, true, false},
		"another cluster":      {"d", "200", 0, true, false},
		"not found":            {"c", "100", 404, true, false},
		"forbidden":            {"c", "100", 403, true, false},
		"a cache's error":      {"c", "100", 500, true, false},
		"overload":             {"c", "100", 503, false, true},
		"too many requests":    {"c", "100", 429, false, true},
		"a proxy's bad answer": {"c", "100", 502, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := testRegistrar(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				switch {
				case req.Method == http.MethodPatch && x.code != 0:
					http.Error(w, "no", x.code)
				case req.Method == http.MethodPatch:
					body := make([]byte, req.ContentLength)
					_, _ = req.Body.Read(body)
					fmt.Fprint(w, strings.Replace(string(body), `"metadata":{`, `"metadata":{"name":"a","uid":"1",`, 1))
				case strings.HasSuffix(req.URL.Path, "kube-system"):
					fmt.Fprintf(w, `{"metadata":{"uid":%q}}`, x.cluster)
				default:
					fmt.Fprintf(w, `{"kind":"PodNetworkList","metadata":{"resourceVersion":%q},"items":[]}`, x.version)
				}
			}), false)
			f := &reflector{kind: api.Nodes(), c: r.client, prover: &prover{c: r.client, node: "a"}, self: "a",
				rv: "100", proof: &proof{cluster: "c"}, broken: errors.New("broke off")}
			err := f.resume(t.Context())
			if (err != nil) != x.retry || (f.rv == "") != x.relist || (f.broken != nil) != x.retry {
				t.Errorf("error %v, version %q, broken %v; want a list %v, another try %v", err, f.rv, f.broken, x.relist, x.retry)
			}
		})
	}
}

func TestResumeWithoutAnyAnswer(t *testing.T) {
	c, err := client.New(client.Access{Server: "http://127.0.0.1:1"}, "test/1", nil) // nobody listens there
	if err != nil {
		t.Fatal(err)
	}
	f := &reflector{kind: api.Nodes(), c: c, prover: &prover{c: c, node: "a"}, self: "a",
		rv: "100", proof: &proof{cluster: "c"}, broken: errors.New("broke off")}
	if err := f.resume(t.Context()); err == nil || f.rv != "100" || f.broken == nil {
		t.Errorf("error %v, version %q, broken %v", err, f.rv, f.broken)
	}
}

// A server that no longer has the history is asked for a list; no other error is a reason for one.
func TestGone(t *testing.T) {
	expired := &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusGone, Reason: metav1.StatusReasonExpired}}
	if !errors.Is(gone(fmt.Errorf("watch: %w", expired)), errGone) {
		t.Error("410 does not ask for a list")
	}
	if errors.Is(gone(errors.New("reset by peer")), errGone) {
		t.Error("a broken connection asks for a list")
	}
}

// Behind MetaServer with requireAuthorization, which is https, Nodes are polled and watches relisted as without it.
func TestReflectorBehindTLS(t *testing.T) {
	for server, want := range map[string]bool{"https://169.254.30.10:10550": true, client.MetaServer: true, "https://10.96.0.1": false} {
		c, err := client.New(client.Access{Server: server, LocalUID: os.Geteuid()}, "test/1", nil)
		if err != nil {
			t.Fatal(err)
		}
		nodes, blocks := &reflector{kind: api.Nodes(), c: c}, &reflector{kind: api.PodBlocks(), c: c}
		if nodes.polls() != want || nodes.cache() != want || blocks.cache() != want || blocks.polls() {
			t.Errorf("%s: polls %v %v, a cache %v", server, nodes.polls(), blocks.polls(), nodes.cache())
		}
	}
}

// A cache replays what it has stored when a watch begins, MetaServer also what was deleted while its node was unreachable, for which no
// event follows: a proved list says that it is gone. Without proof each counts.
func TestReplays(t *testing.T) {
	const replay = `{"type":"ADDED","object":{"metadata":{"name":"deleted","uid":"1","resourceVersion":"90"}}}
{"type":"ADDED","object":{"metadata":{"name":"new","uid":"2","resourceVersion":"110"}}}
{"type":"DELETED","object":{"metadata":{"name":"old","uid":"3","resourceVersion":"80"}}}
`
	for want, proved := range map[string]*proof{"ADDED deleted, ADDED new, DELETED old": nil, "ADDED new, DELETED old": {cluster: "c"}} {
		r, _ := testRegistrar(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, replay) }), false)
		out := make(chan any, 3)
		f := &reflector{kind: api.PodBlocks(), c: r.client, out: out, rv: "100", proof: proved}
		if err := f.receive(t.Context(), time.Minute); err != nil || !f.replays || f.rv != "110" {
			t.Errorf("%v, replays %v, version %s", err, f.replays, f.rv)
		}
		close(out)
		var got []string
		for m := range out {
			e := m.(event)
			got = append(got, e.what+" "+e.obj.Metadata().Name)
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("proved %v: %q, want %q", proved != nil, got, want)
		}
	}
}
