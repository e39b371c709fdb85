package controller

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// objects is an API that has these objects, as JSON by path.
type objects map[string]string

func (o objects) Get(_ context.Context, path string, out any) error {
	text, ok := o[path]
	if !ok {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound}}
	}
	return json.Unmarshal([]byte(text), out)
}

// One rule of each policy, and who a token's node is; the attacks on all rules are in test/kubeapi, on real API servers of both forms.
func TestWebhook(t *testing.T) {
	const (
		agent   = `"username":"system:serviceaccount:ns:edgemesh-agent","extra":{"authentication.kubernetes.io/pod-name":["p"],"authentication.kubernetes.io/pod-uid":["%s"]}`
		owner   = `"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"a","uid":"%s"}]`
		kubelet = `"username":"system:node:a","groups":["system:nodes"]`
	)
	bound := fmt.Sprintf(agent, "u")
	api := objects{
		"/api/v1/namespaces/ns/pods/p": `{"metadata":{"uid":"u"},"spec":{"nodeName":"a"}}`, "/api/v1/nodes/a": `{"metadata":{"uid":"n"}}`,
		"/apis/network.edgemesh.io/v1alpha1/podnetworks/cluster": `{"metadata":{"name":"cluster"},"spec":{"podCIDRs":["10.244.0.0/16"]}}`,
	}
	meshNode := func(uid, more string) string {
		return `{"metadata":{"name":"a",` + fmt.Sprintf(owner, uid) + more + `},"spec":{"peerID":"x"}}`
	}
	block := func(name, cidr string) string {
		return `{"metadata":{"name":"` + name + `",` + fmt.Sprintf(owner, "n") + `},"spec":{"cidr":"` + cidr + `","nodeName":"a"}}`
	}
	for name, x := range map[string]struct {
		resource, operation, user, object, old string
		says                                   string // "" is allowed
	}{
		"its own":                        {"meshnodes", "CREATE", bound, meshNode("n", ""), "", ""},
		"a node that is not the owner":   {"meshnodes", "CREATE", bound, meshNode("other", ""), "", "the owner must be the Node with the UID that the token names, n"},
		"a token of an earlier pod":      {"meshnodes", "CREATE", fmt.Sprintf(agent, "old"), meshNode("n", ""), "", "the identity names no node"},
		"an unbound token":               {"meshnodes", "CREATE", `"username":"system:serviceaccount:ns:edgemesh-agent"`, meshNode("n", ""), "", "the identity names no node"},
		"a pod of another account":       {"meshnodes", "CREATE", strings.Replace(bound, "edgemesh-agent", "other", 1) + `,"groups":["system:nodes"]`, meshNode("n", ""), "", "the identity names no node"},
		"the name in a newer token":      {"meshnodes", "CREATE", strings.Replace(bound, "pod-name", "node-name", 1), meshNode("n", ""), "", "node p may not write what is of node a"},
		"a label":                        {"meshnodes", "CREATE", kubelet, meshNode("n", `,"labels":{"x":"y"}`), "", "may not label"},
		"an owner by certificate":        {"meshnodes", "UPDATE", kubelet, meshNode("n", ""), meshNode("m", ""), "a certificate names none, and may not change an owner"},
		"long managedFields":             {"meshnodes", "CREATE", kubelet, meshNode("n", `,"managedFields":[{"manager":"`+strings.Repeat("m", 2500)+`"}]`), "", "under few names"},
		"an empty annotation":            {"meshnodes", "CREATE", kubelet, meshNode("n", `,"annotations":{"x":""}`), "", "of annotations, a node may write"},
		"an empty annotation, later":     {"meshnodes", "UPDATE", kubelet, meshNode("n", `,"annotations":{"x":""}`), meshNode("n", ""), "of annotations, a node may write"},
		"an administrator's annotation":  {"meshnodes", "UPDATE", kubelet, meshNode("n", `,"annotations":{"x":""}`), meshNode("n", `,"annotations":{"x":""}`), ""},
		"more than agents download":      {"meshnodes", "UPDATE", kubelet, strings.Replace(meshNode("n", ""), `"spec"`, `"x":"`+strings.Repeat("x", maxObject)+`","spec"`, 1), meshNode("n", ""), "it may have 8192"},
		"an administrator's other key":   {"meshnodes", "UPDATE", `"username":"admin"`, strings.Replace(meshNode("n", ""), `"x"`, `"y"`, 1), meshNode("n", ""), "may only change after"},
		"an administrator's MeshNode":    {"meshnodes", "CREATE", `"username":"admin"`, `{"metadata":{"name":"b"},"spec":{"peerID":"x"}}`, "", ""},
		"its block":                      {"podblocks", "CREATE", bound, block("10-244-1-0-24", "10.244.1.0/24"), "", ""},
		"its block, given back":          {"podblocks", "DELETE", bound, "", block("10-244-1-0-24", "10.244.1.0/24"), ""},
		"a block that is not aligned":    {"podblocks", "CREATE", bound, block("10-244-1-0-24", "10.244.1.5/24"), "", "not an aligned CIDR"},
		"a block outside":                {"podblocks", "CREATE", bound, block("10-9-1-0-24", "10.9.1.0/24"), "", "outside the podCIDRs"},
		"a larger block":                 {"podblocks", "CREATE", bound, block("10-244-0-0-20", "10.244.0.0/20"), "", "not of the block size"},
		"a network":                      {"podnetworks", "CREATE", `"username":"admin"`, `{"spec":{"podCIDRs":["10.244.0.0/16"]}}`, "", ""},
		"a network that is not aligned":  {"podnetworks", "CREATE", `"username":"admin"`, `{"spec":{"podCIDRs":["10.244.1.0/16"]}}`, "", "did you mean 10.244.0.0/16?"},
		"a group by anyone":              {"policygroups", "UPDATE", `"username":"x"`, `{}`, `{}`, "only the controller writes PolicyGroups"},
		"a record of another Node":       {"noderecords", "CREATE", `"username":"system:serviceaccount:ns:edgemesh-controller"`, `{"metadata":{"name":"b",` + fmt.Sprintf(owner, "n") + `},"spec":{"nodeUID":"n"}}`, "", "the owner of a NodeRecord"},
		"podCIDRs":                       {"nodes", "UPDATE", kubelet, `{"spec":{"podCIDRs":["10.0.0.0/8"]}}`, `{}`, "may not choose its podCIDRs"},
		"a label of administrators":      {"nodes", "UPDATE", kubelet, `{"metadata":{"labels":{"node-restriction.kubernetes.io/x":""}}}`, `{}`, "may not give itself labels"},
		"a definition":                   {"customresourcedefinitions", "DELETE", `"username":"system:serviceaccount:kubeedge:cloudcore"`, "", `{"spec":{"group":"network.edgemesh.io"}}`, "an edge may not write"},
		"another's definition":           {"customresourcedefinitions", "CREATE", `"username":"admin"`, `{"spec":{"group":"example.org"}}`, "", ""},
		"another's Secret":               {"secrets", "CREATE", `"username":"admin"`, `{"type":"kubernetes.io/tls"}`, "", ""},
		"a Secret that Kubernetes fills": {"secrets", "CREATE", `"username":"system:serviceaccount:ns:edgemesh-controller"`, `{"type":"kubernetes.io/service-account-token"}`, "", "no Secret that Kubernetes fills"},
	} {
		t.Run(name, func(t *testing.T) {
			w := &webhook{api: api, namespace: "ns", log: slog.New(slog.DiscardHandler), slots: make(chan struct{}, 1)}
			in := `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"7","resource":{"resource":"` + x.resource + `"},"operation":"` + x.operation + `","userInfo":{` + x.user + `}`
			if x.object != "" {
				in += `,"object":` + x.object
			}
			if x.old != "" {
				in += `,"oldObject":` + x.old
			}
			for range 2 { // the second time from memory
				out := httptest.NewRecorder()
				w.ServeHTTP(out, httptest.NewRequest(http.MethodPost, "/", strings.NewReader(in+"}}")))
				var got review
				if err := json.Unmarshal(out.Body.Bytes(), &got); err != nil || got.Kind != "AdmissionReview" || got.Response == nil || got.Response.UID != "7" {
					t.Fatalf("%v: %s", err, out.Body)
				}
				if r := got.Response; r.Allowed != (x.says == "") || !r.Allowed && !strings.Contains(r.Status.Message, x.says) {
					t.Fatalf("%s, want %q", out.Body, x.says)
				}
			}
		})
	}
	for body, want := range map[string]int{"": http.StatusBadRequest, "{": http.StatusBadRequest, "{}": http.StatusBadRequest, `{"request":null}`: http.StatusBadRequest,
		`{"request":{"object":"` + strings.Repeat("x", maxReview) + `"}}`: http.StatusRequestEntityTooLarge} {
		out := httptest.NewRecorder()
		(&webhook{slots: make(chan struct{}, 1)}).ServeHTTP(out, httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body)))
		if out.Code != want {
			t.Errorf("%.20q: %d, want %d", body, out.Code, want)
		}
	}
}

// vault is an API with the Secret and the configuration of the webhook.
type vault struct {
	cluster
	secret *secret
	bundle []byte
	patch  error
	absent bool   // the configuration
	more   string // fields of the webhook
	create error
}

func (v *vault) Get(_ context.Context, path string, out any) error {
	if path == webhooks && v.absent {
		return objects(nil).Get(context.Background(), path, out)
	}
	if path == webhooks {
		return json.Unmarshal(fmt.Appendf(nil, `{"webhooks":[{"name":"x"%s,"clientConfig":{"caBundle":%q}}]}`, v.more, base64.StdEncoding.EncodeToString(v.bundle)), out)
	}
	if v.secret == nil {
		return objects(nil).Get(context.Background(), path, out)
	}
	*out.(*secret) = *v.secret
	return nil
}

func (v *vault) Create(_ context.Context, _ string, in, out any) error {
	if v.create != nil {
		return v.create
	}
	s := in.(secret)
	v.secret, *out.(*secret) = &s, s
	return nil
}

func (v *vault) Patch(_ context.Context, path, _ string, _ url.Values, in, out any) error {
	if path != webhooks {
		return v.Create(context.Background(), path, in, out)
	}
	if v.patch != nil {
		return v.patch
	}
	v.bundle, _ = base64.StdEncoding.DecodeString(in.(map[string]any)["webhooks"].([]map[string]any)[0]["clientConfig"].(map[string]any)["caBundle"].(string))
	return nil
}

// trusts says that an API server with that bundle believes the certificate that is served.
func (v *vault) trusts(t *testing.T, a *authority) bool {
	t.Helper()
	c, err := a.get(nil)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(v.bundle)
	_, err = c.Leaf.Verify(x509.VerifyOptions{DNSName: "edgemesh-webhook.ns.svc", Roots: roots, CurrentTime: a.now()})
	return err == nil
}

// Two controllers serve under one CA. Certificates and CA are renewed before they end, and no certificate is served that the API
// server does not trust yet.
func TestCertificate(t *testing.T) {
	now, v := time.Unix(1_800_000_000, 0), &vault{}
	controller := func() *authority {
		return &authority{api: v, namespace: "ns", metrics: newMetrics(nil), log: slog.New(slog.DiscardHandler), now: func() time.Time { return now }}
	}
	a, b := controller(), controller()
	if _, err := a.get(nil); err == nil {
		t.Fatal("a certificate before there is one")
	}
	keep := func() {
		t.Helper()
		for _, x := range []*authority{a, b} {
			if err := x.keep(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if !v.trusts(t, a) || !v.trusts(t, b) {
			t.Fatalf("not trusted at %v", now)
		}
	}
	keep()
	first, _ := a.get(nil)
	ca := v.bundle
	now = now.Add(certLife * 7 / 10)
	keep()
	if second, _ := a.get(nil); second == first || !bytes.Equal(ca, v.bundle) {
		t.Error("the certificate was not renewed, or its CA was")
	}
	now = now.Add(caLife * 7 / 10)
	keep()
	if bytes.Equal(ca, v.bundle) || !bytes.HasSuffix(v.bundle, ca) {
		t.Error("the CA was not renewed, or the former one is not trusted any longer")
	}
	// While the configuration cannot be written, what is served stays.
	before, _ := a.get(nil)
	now, v.patch = now.Add(caLife*7/10), fmt.Errorf("no")
	if err := a.keep(t.Context()); err == nil || !strings.Contains(err.Error(), "ValidatingWebhookConfiguration") {
		t.Errorf("%v", err)
	}
	if after, _ := a.get(nil); after != before {
		t.Error("a certificate is served that nobody trusts")
	}
	// A user has deleted it: this controller guards nothing, until it is there again.
	for _, v.absent = range []bool{true, false} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		v.patch = nil
		a.run(ctx)
		cancel()
		if a.missing.Load() != v.absent {
			t.Errorf("absent %v, missing %v", v.absent, a.missing.Load())
		}
	}
	// All of them were off until all of it had expired.
	v.patch, now = nil, now.Add(2*caLife)
	keep()
	// An administrator removed the Secret, or put something else there.
	v.secret = nil
	keep()
	v.secret.Data[caKey] = []byte("x")
	keep()
}

// Helm makes the webhook after the controller that it leads to: only one that stays away is a warning.
func TestWebhookComesLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		v := &vault{absent: true}
		a := &authority{api: v, namespace: "ns", metrics: newMetrics(nil), now: time.Now, log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))}
		run := func(d time.Duration) {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			defer cancel()
			a.run(ctx)
		}
		if run(openFor - 1); !a.missing.Load() || log.Len() > 0 {
			t.Errorf("missing %v, logged %s", a.missing.Load(), &log)
		}
		if run(openFor + certSoon); log.Len() == 0 {
			t.Error("no warning of a webhook that stays away")
		}
		v.absent = false
		if run(certSoon); a.missing.Load() {
			t.Error("missing, although it is there")
		}
	})
}

// An API server that drops matchConditions has everything wait for the controller: it says so, by name.
func TestDroppedConditions(t *testing.T) {
	for more, says := range map[string]bool{
		"": false, `,"failurePolicy":"Ignore"`: false, `,"failurePolicy":"Fail","matchConditions":[{"name":"is-an-agent","expression":"true"}]`: false,
		`,"failurePolicy":"Fail"`: true, `,"failurePolicy":"Fail","matchConditions":[]`: true,
	} {
		var log bytes.Buffer
		a := &authority{api: &vault{more: more}, namespace: "ns", metrics: newMetrics(nil), now: time.Now, log: slog.New(slog.NewTextHandler(&log, nil))}
		if err := a.keep(t.Context()); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(log.String(), "level=ERROR") != says || says && !strings.Contains(log.String(), "webhooks=[x]") {
			t.Errorf("%q: %s", more, &log)
		}
		log.Reset()
		a.api = &vault{more: more, create: errors.New("failed calling webhook")} // such a webhook waits for a certificate that it keeps from being made
		if err := a.keep(t.Context()); err == nil || strings.Contains(log.String(), "level=ERROR") != says {
			t.Errorf("%q, and no Secret can be made: %v: %s", more, err, &log)
		}
	}
}
