package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"edgemesh/agent/findings"
	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

// TestPeerWithoutPower takes a peer's power while packets go to it, so that no goodbye comes, and sends nothing more: within 5 s status
// says that it does not answer, within 40 s that it is offline, and so until ten minutes after the last packet. Each text names our
// causes alone. When the peer is back that is over.
func TestPeerWithoutPower(t *testing.T) {
	tier.Long(t)
	for name, c := range map[string]struct {
		sites  []string
		relays int
	}{"two NATs, one relay": {[]string{"site-1", "site-2"}, 1}, "two NATs, two relays": {[]string{"site-1", "site-2"}, 2}, "one LAN": {[]string{"site-1"}, 1}} {
		t.Run(name, func(t *testing.T) {
			beside(t)
			l := newLab(t)
			for i := range c.relays {
				relay(t, l, fmt.Sprintf("relay-%d", i+1))
			}
			var sites []*lab.Site
			for _, s := range c.sites {
				sites = append(sites, site(t, l, s, lab.EIM))
			}
			n1 := node(t, sites[0], "edge-1", lab.NodeOptions{})
			n2 := node(t, sites[len(sites)-1], "edge-2", lab.NodeOptions{})
			startAll(t, l)
			pod1, pod2 := pod(t, n1, "one"), pod(t, n2, "two")
			curlPods(t, pod1, pod2, 10*time.Second)
			kinds := []string{"punched"}
			if len(sites) == 1 {
				kinds = []string{"native"}
			}
			_, err := n1.WaitPath(within(t, 60*time.Second), n2, kinds...)
			ok(t, err)
			route := filepath.Join(t.TempDir(), "route")
			ok(t, n2.Script("ip route show default >"+route, "ip link set "+n2.Uplink+" down"))
			off := time.Now()
			_ = pod1.Ping(t.Context(), pod2.IP4().String(), time.Second)
			n2.Agent.Kill()
			says := func(most time.Duration, id, words string) {
				t.Helper()
				ok(t, lab.Until(within(t, most-time.Since(off)), 100*time.Millisecond, func() error {
					line, all := verdict(t, n1, "status")
					wrong := findings.Only(all, findings.Broken, findings.Warning)
					if len(wrong) != 1 || wrong[0].ID != id || !strings.Contains(wrong[0].Text, words) || !strings.HasPrefix(line, "TROUBLE: "+wrong[0].Text) {
						return fmt.Errorf("%v: %s: %+v", time.Since(off).Round(time.Millisecond), line, wrong)
					}
					t.Logf("after %.1f s: %s", time.Since(off).Seconds(), line)
					return nil
				}))
			}
			says(5*time.Second, "peer-unreachable", "edge-2 does not answer (last heard ")
			says(40*time.Second, "peer-offline", "edge-2 is offline")
			time.Sleep(2 * time.Minute) // sleep: it stays offline
			says(time.Since(off)+time.Second, "peer-offline", "edge-2 is offline")
			ok(t, n2.Script("ip link set "+n2.Uplink+" up", "ip route replace $(cat "+route+")"))
			ok(t, n2.Start())
			healed(t, pod1, pod2, n1)
		})
	}
}
