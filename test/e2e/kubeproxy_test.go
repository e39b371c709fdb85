package e2e

import (
	"fmt"
	"net/http"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"edgemesh/test/kubeapi"
	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

// TestKubeProxy: Services through the real kube-proxy, in both of its modes, over a
// native path and over VXLAN: from a pod, from the node, and from a host of the LAN, whose
// packets are masqueraded.
func TestKubeProxy(t *testing.T) {
	tier.Long(t)
	p := newLANPair(t, nil)
	laptop, _, err := p.site.AddHost("laptop")
	ok(t, err)
	c, kubeconfig := kubernetes(t, p.n1)
	ok(t, c.CreateNode(p.n1.Name, p.n1.PodCIDRs...))
	proxy := filepath.Join(c.Bin, "kube-proxy")
	out, err := exec.Command(filepath.Join(c.Root, "test/kubeapi/build.sh"), "kube-proxy").CombinedOutput()
	if err != nil {
		t.Fatalf("build kube-proxy: %v\n%s", err, out)
	}
	vip := service(t, c, p.n1, p.pod2)
	for _, way := range []struct {
		path string
		lan  map[string]any
	}{{"native", nil}, {"vxlan", map[string]any{"native": false}}} {
		if way.lan != nil {
			ok(t, p.n1.Agent.Stop())
			p.n1.Config.LAN = way.lan
			ok(t, p.n1.Start())
			ready(t, p.n1)
		}
		curlPods(t, p.pod1, p.pod2, 5*time.Second)
		p.both(t, 20*time.Second, way.path)
		for _, mode := range []string{"iptables", "nftables"} {
			args := []string{
				proxy, "--kubeconfig", kubeconfig, "--hostname-override", p.n1.Name, "--cluster-cidr",
				lab.DefaultRange4, "--proxy-mode", mode, "--conntrack-max-per-core", "0",
			}
			running, err := p.n1.NS.Start("kube-proxy-"+mode, args...)
			ok(t, err)
			for _, from := range []struct {
				ns     *lab.NS
				to     netip.Addr
				source netip.Addr
			}{
				{p.pod1.NS, vip, p.pod1.IP4()}, {p.n1.NS, vip, gateway(p.pod1.IP4())}, {laptop, p.n1.Addr, gateway(p.pod1.IP4())},
				{p.pod1.NS, p.n1.Addr, netip.Addr{}},
			} {
				err := lab.Until(within(t, 2*time.Minute), 100*time.Millisecond, func() error { // kube-proxy takes long to start on a busy machine
					return tryCurl(t.Context(), from.ns, p.pod2, from.to, from.source, 2*time.Second)
				})
				if err != nil {
					t.Errorf("%s, kube-proxy %s: %v", way.path, mode, err)
				}
			}
			for range 20 { // no connection of many takes another way
				curl(t, p.n1.NS, p.pod2, vip, gateway(p.pod1.IP4()), 2*time.Second)
				curl(t, laptop, p.pod2, p.n1.Addr, gateway(p.pod1.IP4()), 2*time.Second)
			}
			// The mark of what is masqueraded inside VXLAN is on the outer packets, too.
			out, err := p.n1.Run(t.Context(), "conntrack", "-L", "-p", "udp", "-s", p.n1.Addr.String(), "--dport",
				"5210")
			if err != nil || out != "" {
				t.Errorf("VXLAN that leaves is tracked, so that it may be translated: %s %v", out, err)
			}
			ok(t, running.Stop())
			if _, err := p.n1.Run(t.Context(), append(args, "--cleanup")...); err != nil {
				t.Errorf("kube-proxy --cleanup: %v", err)
			}
		}
		p.both(t, 20*time.Second, way.path)
	}
}

// service makes a Service for a pod, with the node's address as another of its own, and
// returns its ClusterIP.
func service(t *testing.T, c *kubeapi.Cluster, n *lab.Node, to *lab.Pod) netip.Addr {
	t.Helper()
	var made struct {
		Spec struct {
			ClusterIP string `json:"clusterIP"`
		} `json:"spec"`
	}
	port := map[string]any{"port": lab.ServePort, "protocol": "TCP"}
	ok(t, c.Do(http.MethodPost, "/api/v1/namespaces/default/services", map[string]any{
		"apiVersion": "v1", "kind": "Service", "metadata": map[string]any{"name": "far"},
		"spec": map[string]any{"ports": []any{port}, "externalIPs": []string{n.Addr.String()}},
	}, &made))
	ok(t, c.Do(http.MethodPost, "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", map[string]any{
		"apiVersion":  "discovery.k8s.io/v1",
		"kind":        "EndpointSlice",
		"addressType": "IPv4",
		"metadata":    map[string]any{"name": "far", "labels": map[string]any{"kubernetes.io/service-name": "far"}},
		"endpoints": []any{map[string]any{
			"addresses":  []string{to.IP4().String()},
			"conditions": map[string]any{"ready": true},
		}},
		"ports": []any{map[string]any{"name": "", "port": lab.ServePort, "protocol": "TCP"}},
	}, nil))
	vip, err := netip.ParseAddr(made.Spec.ClusterIP)
	if err != nil || !strings.HasPrefix(made.Spec.ClusterIP, "10.96.") {
		t.Fatal(fmt.Errorf("ClusterIP %q: %w", made.Spec.ClusterIP, err))
	}
	return vip
}
