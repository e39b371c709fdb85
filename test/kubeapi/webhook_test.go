package kubeapi_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/test/fair"
	"edgemesh/test/kubeapi"
)

// expired serves the webhook with a certificate that is over, of the CA that the API server is to believe.
func expired(t *testing.T, c *kubeapi.Cluster) (stop func()) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	x := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, x, x, key.Public(), key)
	must(t, err)
	const path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/edgemesh"
	var is struct {
		Webhooks []map[string]any `json:"webhooks"`
	}
	must(t, c.Do(http.MethodGet, path, nil, &is))
	for _, w := range is.Webhooks {
		w["clientConfig"].(map[string]any)["caBundle"] = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	}
	must(t, c.Patch(path, map[string]any{"webhooks": is.Webhooks}))
	l, err := tls.Listen("tcp", c.Webhook(), &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
	must(t, err)
	s := &http.Server{ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: time.Minute}
	go func() { _ = s.Serve(l) }()
	return func() { _ = s.Close() }
}

// While no controller answers on Kubernetes 1.28 and 1.29, kubelets and administrators write what they have to, what is refused stays refused,
// members stay, a node that joins waits and says for what, also where its certificate has expired, and joins once a controller is back.
func TestWebhookIsDown(t *testing.T) {
	t.Parallel()
	c := emptyCluster(t)
	if !c.Old() {
		t.Skip("policies guard this API server (EDGEMESH_K8S_VERSION=v1.28.15 or EDGEMESH_K8S_CHART=v1.29.14 runs it)")
	}
	network(t, c, nil)
	must(t, c.CreateNode("a", "10.244.1.0/24"), c.CreateNode("b"))
	a := tokenAgent(t, c, "a", c.URL)
	a.start()
	cert, err := c.NodeCertificate("a", time.Now().Add(-time.Hour))
	must(t, err, c.Kubeconfig("a-kubelet.conf", cert, c.URL))
	kubelet := login(t, c, "a", "a-kubelet.conf")

	c.StopGuard()
	node := nodesPath + "/a"
	kubelet.wants(t,
		patch("its heartbeat", node+"/status", conditionJSON("Ready", "True")),
		patch("its labels", node, `{"metadata":{"labels":{"x":"y"}}}`),
		patch("its podCIDRs", nodesPath+"/b", `{"spec":{"podCIDR":"10.244.0.0/16","podCIDRs":["10.244.0.0/16"]}}`).refused(forbidden, ""),
		patch("a label of administrators", node, `{"metadata":{"labels":{"node-restriction.kubernetes.io/x":"y"}}}`).refused(forbidden, ""),
		patch("its MeshNode", meshNodesPath+"/a", `{"metadata":{"annotations":{"`+api.ModeAnnotation+`":"keep"}}}`).refused(http.StatusInternalServerError, "failed calling webhook"))
	must(t, c.Patch(networkPath, map[string]any{"spec": map[string]any{"encryption": "always"}}),
		c.Delete(kubeapi.Group+"meshnodes/other"))
	b := tokenAgent(t, c, "b", c.URL)
	said := b.listens()
	says := func(text string) bool { return b.told(text) || strings.Contains(said.String(), text) }
	b.waits("it names the webhook", func() bool { return says("it does not answer the API server") })
	if a.blip("a") || a.members() != "a=10.244.1.0/24" {
		t.Errorf("a lost %q", a.members())
	}

	stop := expired(t, c)
	b.waits("it names the certificate", func() bool {
		return says("certificate has expired or is not yet valid") && says("the API server does not believe its certificate")
	})
	stop()

	must(t, c.StartGuard()) // with a certificate of its own
	fair.Eventually(t, patience, "b joins", fair.True(func() bool { return b.tryStart(patience) == nil }))
	t.Cleanup(b.stop)
	a.sees("a=10.244.1.0/24 b=10.244.0.0/24")
}
