package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

// subnet is subnet.json, as the agent writes it.
type subnet struct {
	PodCIDRs     []string `json:"podCIDRs"`
	ClusterCIDRs []string `json:"clusterCIDRs"`
	MTU          int      `json:"mtu"`
}

// pluginNode makes a node without an agent, with the given subnet.json.
func pluginNode(t *testing.T, l *lab.Lab, name string, blocks ...string) *lab.Node {
	t.Helper()
	n := cloud(t, l, name, lab.NodeOptions{NoAgent: true, PodCIDRs: blocks})
	b, err := json.Marshal(subnet{PodCIDRs: blocks, ClusterCIDRs: l.Cluster.PodCIDRs, MTU: 1500})
	ok(t, err)
	ok(t, lab.ReplaceFile(filepath.Join(n.Config.RuntimeDir, "subnet.json"), string(b)))
	return n
}

// TestPluginAlone holds what the plugin does with no agent running.
func TestPluginAlone(t *testing.T) {
	tier.All(t)
	beside(t)
	l := newLab(t)
	for _, tc := range []struct {
		name   string
		blocks []string
		v4, v6 bool
	}{
		{"dual", []string{"10.244.7.0/24", "fd44:44:0:7::/64"}, true, true},
		{"v4", []string{"10.244.8.0/24"}, true, false},
		{"v6", []string{"fd44:44:0:9::/64"}, false, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := pluginNode(t, l, "plug-"+tc.name, tc.blocks...)
			a, b := pod(t, n, "a"), pod(t, n, "b")
			if a.IP4().IsValid() != tc.v4 || a.IP6().IsValid() != tc.v6 {
				t.Errorf("addresses %v of blocks %v", a.Addrs, tc.blocks)
			}
			curlPods(t, a, b, time.Second)
			curlPods(t, b, a, time.Second)
			for _, addrs := range pairs(a, a) { // hairpin or not, a pod reaches itself
				curl(t, a.NS, a, addrs[1], addrs[0], time.Second)
			}
			for _, addr := range b.Addrs {
				if err := n.Ping(t.Context(), addr.String(), time.Second); err != nil {
					t.Errorf("node to its pod: %v", err)
				}
				record := filepath.Join(n.DataDir, addr.String()+"_default_b")
				content, err := os.ReadFile(record)
				ok(t, err)
				contains(t, string(content), b.ID, "eth0", "default", "b")
			}
			ok(t, b.Delete(t.Context()))
			for _, addr := range b.Addrs {
				noAnswer(t, a.NS, addr, "a deleted pod")
			}
			_, err := n.CNI(t.Context(), "DEL", n.Netconf("1.0.0"), b.ID, "", "b")
			if err != nil {
				t.Errorf("a second DEL, without a namespace: %v", err)
			}
			again, err := n.AddPod(t.Context(), "b")
			ok(t, err)
			if fmt.Sprint(again.Addrs) != fmt.Sprint(b.Addrs) {
				t.Errorf("the pod of the same name had %v, now has %v", b.Addrs, again.Addrs)
			}
			ok(t, again.Delete(t.Context()))
		})
	}
	t.Run("VersionsOfTheSpecification", func(t *testing.T) {
		n := pluginNode(t, l, "plug-versions", "10.244.10.0/24")
		for _, v := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
			id := "ver" + strings.ReplaceAll(v, ".", "")
			p, err := n.AddPodVersion(t.Context(), id, v)
			ok(t, err)
			var r struct {
				CNIVersion string `json:"cniVersion"`
			}
			ok(t, json.Unmarshal([]byte(p.Result), &r))
			if r.CNIVersion != v {
				t.Errorf("asked for %s, result is of %s", v, r.CNIVersion)
			}
			ok(t, p.Delete(t.Context()))
		}
	})
	t.Run("BeforeSubnetFile", func(t *testing.T) {
		n := cloud(t, l, "plug-early", lab.NodeOptions{NoAgent: true})
		_, err := n.AddPod(t.Context(), "early")
		var ce *lab.CNIError
		if !errors.As(err, &ce) || ce.Code != lab.CNITryAgain {
			t.Errorf("ADD before subnet.json: %v, want code %d", err, lab.CNITryAgain)
		}
	})
}
