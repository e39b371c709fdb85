package manifests

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// After an upgrade from 1.29 the webhook stays, and the controller serves it, until the last of the policies is there. The API server
// here has only what the chart looks for; test/e2e TestKubernetesUpgrade has real ones.
func TestWebhookStaysUntilPoliciesAreThere(t *testing.T) {
	helm := tool(t, "helm")
	const group = "/apis/admissionregistration.k8s.io/v1"
	for name, x := range map[string]struct {
		version string
		objects []string // what the API server has
		want    string
		age     time.Duration // of these; zero: an hour
	}{
		"1.29":                       {"v1.29.14", []string{"/validatingwebhookconfigurations/edgemesh"}, "webhooks 6, policies 0, serves 1, rights 3", 0},
		"1.30, new":                  {"v1.30.14", nil, "webhooks 0, policies 9, serves 0, rights 0", 0},
		"1.30, of 1.29":              {"v1.30.14", []string{"/validatingwebhookconfigurations/edgemesh"}, "webhooks 6, policies 9, serves 1, rights 3", 0},
		"1.30, half of the policies": {"v1.30.14", []string{"/validatingwebhookconfigurations/edgemesh", "/validatingadmissionpolicybindings/edgemesh-own-node"}, "webhooks 6, policies 9, serves 1, rights 3", 0},
		"1.30, both": {"v1.30.14", []string{"/validatingwebhookconfigurations/edgemesh", "/validatingadmissionpolicybindings/edgemesh-own-node", "/validatingadmissionpolicybindings/edgemesh-crds"},
			"webhooks 0, policies 9, serves 0, rights 0", 0},
		"1.30, both, the policies just now": {"v1.30.14", []string{"/validatingwebhookconfigurations/edgemesh", "/validatingadmissionpolicybindings/edgemesh-own-node", "/validatingadmissionpolicybindings/edgemesh-crds"},
			"webhooks 6, policies 9, serves 1, rights 3", time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				switch {
				case r.URL.Path == "/api/v1":
					_, _ = io.WriteString(w, `{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"nodes","kind":"Node","namespaced":false,"verbs":["get","list"]}]}`)
				case r.URL.Path == group:
					_, _ = io.WriteString(w, `{"kind":"APIResourceList","groupVersion":"admissionregistration.k8s.io/v1","resources":[`+
						`{"name":"validatingwebhookconfigurations","kind":"ValidatingWebhookConfiguration","verbs":["get"]},`+
						`{"name":"validatingadmissionpolicybindings","kind":"ValidatingAdmissionPolicyBinding","verbs":["get"]}]}`)
				case r.URL.Path == "/api/v1/nodes":
					_, _ = io.WriteString(w, `{"kind":"NodeList","apiVersion":"v1","items":[]}`)
				default:
					for _, o := range x.objects {
						if r.URL.Path == group+o {
							fmt.Fprintf(w, `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"X","metadata":{"name":%q,"creationTimestamp":%q}}`,
								o[strings.LastIndexByte(o, '/')+1:], time.Now().Add(-cmp.Or(x.age, time.Hour)).UTC().Format(time.RFC3339))
							return
						}
					}
					w.WriteHeader(http.StatusNotFound)
					_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
				}
			}))
			t.Cleanup(s.Close)
			out, err := command(t, helm, append([]string{"template", "x", chart, "--kube-version", x.version, "--dry-run=server", "--kube-apiserver", s.URL}, must()...)...)
			if err != nil {
				t.Fatal(err)
			}
			got := fmt.Sprintf("webhooks %d, policies %d, serves %d, rights %d", strings.Count(out, "admissionReviewVersions"),
				strings.Count(out, "kind: ValidatingAdmissionPolicy\n"), strings.Count(out, "--webhook=:9472"), strings.Count(out, "resources: [validatingwebhookconfigurations]")+
					strings.Count(out, "resourceNames: [edgemesh-webhook]")+strings.Count(out, "    resources: [pods]\n    verbs: [get]\n"))
			if got != x.want {
				t.Errorf("%s, want %s", got, x.want)
			}
			// The policy that decides whether the webhook may go is the last one, which helm makes last.
			if at := strings.LastIndex(out, "kind: ValidatingAdmissionPolicyBinding"); at >= 0 && !strings.HasPrefix(out[at:], "kind: ValidatingAdmissionPolicyBinding\nmetadata:\n  name: edgemesh-crds\n") {
				t.Errorf("the last binding is %.100q", out[at:])
			}
		})
	}
}
