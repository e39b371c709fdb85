package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"edgemesh/test/fair"
	"edgemesh/test/lab"
	"edgemesh/test/repo"
	"edgemesh/test/tier"
)

// TestExamplePrometheus is manifests/examples/prometheus: a Prometheus in the cloud scrapes agents behind NATs that have the same address
// on their LANs. Its configuration is the chart's, the jobs with lists of addresses.
func TestExamplePrometheus(t *testing.T) {
	tier.Long(t)
	l := newLab(t)
	relay(t, l, "relay")
	shops := []*lab.Node{node(t, site(t, l, "site-a", lab.EIM), "shop-1", lab.NodeOptions{}), node(t, site(t, l, "site-b", lab.Symmetric), "shop-2", lab.NodeOptions{})}
	center := cloud(t, l, "cloud-1", lab.NodeOptions{})
	startRelays(t, l)
	var targets strings.Builder
	for _, n := range append(shops, center) {
		n.Config.MetricsAddress = "mesh:9469"
		ok(t, n.Start())
		at := netip.AddrPortFrom(gateway(netip.MustParsePrefix(n.PodCIDRs[0]).Addr()), 9469)
		fmt.Fprintf(&targets, "- {targets: ['%s'], labels: {node: %s}}\n", at, n.Name)
	}
	ready(t, append(shops, center)...)

	root, err := repo.Root()
	ok(t, err)
	text, err := os.ReadFile(filepath.Join(root, "manifests/edgemesh/monitoring/prometheus.yaml"))
	ok(t, err)
	var config map[string]any
	ok(t, yaml.Unmarshal([]byte(strings.ReplaceAll(string(text), "/etc/prometheus/edgemesh/", l.Dir+"/")), &config))
	var lists []any
	for _, job := range config["scrape_configs"].([]any) {
		if strings.HasSuffix(job.(map[string]any)["job_name"].(string), "-list") {
			lists = append(lists, job)
		}
	}
	config["scrape_configs"], config["rule_files"], config["global"] = lists, nil, map[string]any{"scrape_interval": "2s", "scrape_timeout": "2s"}
	text, err = yaml.Marshal(config)
	ok(t, err)
	ok(t, os.WriteFile(l.Dir+"/agents.yaml", []byte(targets.String()), 0o644))
	ok(t, os.WriteFile(l.Dir+"/relays.yaml", []byte("[]\n"), 0o644))
	ok(t, os.WriteFile(l.Dir+"/prometheus.yml", text, 0o644))
	p := pod(t, center, "prometheus")
	_, err = p.Start("prometheus", tool(t, "prometheus"), "--config.file="+l.Dir+"/prometheus.yml", "--storage.tsdb.path="+l.Dir+"/data", "--web.listen-address=127.0.0.1:9090")
	ok(t, err)
	for _, query := range []string{`count(up{job="edgemesh-agent"}==1)==3`, `count(edgemesh_membership_good{node=~"shop-.*"}==1)==2`} {
		fair.Eventually(t, time.Minute, query, func() error {
			out, err := p.Run(t.Context(), "curl", "-gsS", "-m", "3", "--data-urlencode", "query="+query, "http://127.0.0.1:9090/api/v1/query")
			if err == nil && !strings.Contains(out, `"value":[`) {
				err = fmt.Errorf("no: %s", out)
			}
			return err
		})
		t.Logf("Prometheus says: %s", query)
	}
}

// TestExampleMQTT is manifests/examples/mqtt: what a machine behind a NAT publishes arrives at a broker in the cloud, which sees the
// pod's own address, and nothing is lost while the factory has no uplink.
func TestExampleMQTT(t *testing.T) {
	tier.Long(t)
	for _, program := range []string{"mosquitto", "mosquitto_pub", "mosquitto_sub"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("NOT TESTED: no %s: apt-get install mosquitto mosquitto-clients", program)
		}
	}
	l := newLab(t)
	relay(t, l, "relay")
	factory, center := node(t, site(t, l, "factory", lab.EIM), "factory-1", lab.NodeOptions{}), cloud(t, l, "cloud-1", lab.NodeOptions{})
	startRelays(t, l)
	ok(t, factory.Start())
	ok(t, center.Start())
	ready(t, factory, center)
	broker, machine := pod(t, center, "broker"), pod(t, factory, "machine")
	config := l.Dir + "/mosquitto.conf"
	ok(t, os.WriteFile(config, []byte("listener 1883\nallow_anonymous true\nuser root\n"), 0o644))
	b, err := broker.Start("mosquitto", "mosquitto", "-v", "-c", config)
	ok(t, err)
	at := broker.IP4().String()
	fair.Eventually(t, 20*time.Second, "the broker answers the machine", func() error {
		_, err := machine.Run(t.Context(), "mosquitto_pub", "-h", at, "-t", "first", "-m", "contact")
		return err
	})
	cloudSide, err := broker.Start("mosquitto_sub", "mosquitto_sub", "-h", "127.0.0.1", "-t", "factory/#", "-q", "1", "-v", "-C", "20")
	ok(t, err)
	fair.Eventually(t, 20*time.Second, "the cloud subscribes", func() error {
		if !strings.Contains(b.Tail(1000), "Sending SUBACK") {
			return fmt.Errorf("the broker's log: %s", b.Tail(20))
		}
		return nil
	})
	_, err = machine.Start("mosquitto_pub", "sh", "-c", "for i in $(seq 20); do echo $i; sleep .5; done | mosquitto_pub -h "+at+" -t factory/line-1 -q 1 -l")
	ok(t, err)
	fair.Eventually(t, 30*time.Second, "the first messages arrive", func() error {
		if out := cloudSide.Tail(40); !strings.Contains(out, "factory/line-1 3\n") {
			return fmt.Errorf("so far: %s", out)
		}
		return nil
	})
	ok(t, factory.Script("ip link set "+factory.Uplink+" down"))
	time.Sleep(3 * time.Second) // sleep: as long as the uplink is off
	ok(t, factory.Script("ip link set "+factory.Uplink+" up", "ip route replace default via 192.168.1.1"))
	ok(t, cloudSide.Wait(within(t, time.Minute)))
	var want strings.Builder
	for i := range 20 {
		fmt.Fprintf(&want, "factory/line-1 %d\n", i+1)
	}
	contains(t, cloudSide.Tail(40)+"\n", want.String())
	contains(t, b.Tail(1000), "New connection from "+machine.IP4().String())
	t.Logf("20 of 20 messages, from %s", machine.IP4())
}
