package conf

import (
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"edgemesh/internal/membership/mesh"
)

func parse(stdin, args string) (*NetConf, error) {
	c, err := ParseNetConf([]byte(stdin))
	if err != nil {
		return nil, err
	}
	return c, c.Validate(args)
}

func TestDefaults(t *testing.T) {
	c, err := parse(`{"cniVersion":"1.0.0","name":"edgemesh","type":"edgemesh-cni"}`, "")
	if err != nil {
		t.Fatal(err)
	}
	if c.RuntimeDir != "/run/edgemesh" || c.DataDir != "/var/lib/cni/networks/edgemesh" || c.Bridge != "edgemesh-br" ||
		c.KeepOnly != KeepAll || c.Keep != 0 || len(c.Wanted) != 0 || c.PromiscMode || c.AllowSpoofing {
		t.Errorf("%+v", c)
	}
}

// A value of the wrong type is reported in the file's words, not in Go's.
func TestWrongTypes(t *testing.T) {
	for text, want := range map[string]string{
		`{"bridge":5}`:                    "bridge: must be a string, not of the type number",
		`{"type":true}`:                   "type: must be a string, not of the type bool",
		`{"promiscMode":"yes"}`:           "promiscMode: must be true or false, not of the type string",
		`{"exclude":"10.1.1.9"}`:          "exclude: must be a list, not of the type string",
		`{"exclude":[{}]}`:                "exclude: must be a string, not of the type object",
		`{"runtimeConfig":[]}`:            "runtimeConfig: must be an object, not of the type array",
		`{"args":{"cni":{"ips":"a"}}}`:    "args.cni.ips: must be a list, not of the type string",
		`{"dataDir":["/var/lib/a"]}`:      "dataDir: must be a string, not of the type array",
		`{"name":"edgemesh","bridge":5,}`: "invalid character",
	} {
		_, err := parse(text, "")
		if !errors.Is(err, ErrNetConf) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func TestOptions(t *testing.T) {
	c, err := parse(`{"name":"n","keepFor":"72h","keepOnly":"statefulset","unknownToUs":1,
		"exclude":["10.1.1.9","10.1.2.0/30","fd00::5-fd00::9"],
		"runtimeConfig":{"ips":["10.1.1.5/24","fd00::7"]},"args":{"cni":{"ips":["10.1.1.6"]}}}`,
		"IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web-0;K8S_POD_UID=u;IP=10.1.1.7;FOO=bar")
	if err != nil {
		t.Fatal(err)
	}
	if c.Keep != 72*time.Hour || c.Pod != (PodArgs{"ns", "web-0", "u"}) {
		t.Errorf("%+v", c)
	}
	if want := []netip.Addr{netip.MustParseAddr("10.1.1.5"), netip.MustParseAddr("fd00::7")}; !slices.Equal(c.Wanted, want) {
		t.Errorf("wanted %v", c.Wanted)
	}
	for a, in := range map[string]bool{"10.1.1.9": true, "10.1.1.8": false, "10.1.2.0": true, "10.1.2.3": true, "10.1.2.4": false,
		"fd00::4": false, "fd00::5": true, "fd00::9": true, "fd00::a": false} {
		addr := netip.MustParseAddr(a)
		if got := slices.ContainsFunc(c.Excluded, func(r AddrRange) bool { return r.Contains(addr) }); got != in {
			t.Errorf("%s excluded: %v", a, got)
		}
	}
	if !c.Keeps("web-0") || c.Keeps("web-abc") {
		t.Error("keepOnly statefulset")
	}
	if c, _ = parse(`{"name":"n"}`, "K8S_POD_NAME=alone"); c.Pod != (PodArgs{}) {
		t.Errorf("half a name: %+v", c.Pod)
	}
}

func TestBadOptions(t *testing.T) {
	for _, c := range []struct{ stdin, args, key string }{
		{`[]`, "", ""},
		{`{"bridge":"this-name-is-too-long"}`, "", "bridge"},
		{`{"bridge":".."}`, "", "bridge"},
		{`{"runtimeDir":"run"}`, "", "runtimeDir"},
		{`{"dataDir":"./x"}`, "", "dataDir"},
		{`{"keepOnly":"ALL"}`, "", "keepOnly"},
		{`{"keepFor":"-1h"}`, "", "keepFor"},
		{`{"exclude":["10.1.1.1/33"]}`, "", "exclude"},
		{`{"exclude":["10.1.1.9-fd00::1"]}`, "", "exclude"},
		{`{"exclude":["fe80::1%eth0"]}`, "", "exclude"},
		{`{"runtimeConfig":{"ips":["10.1.1.1","10.1.1.2"]}}`, "", "runtimeConfig.ips"},
		{`{"args":{"cni":{"ips":["x"]}}}`, "", "args.cni.ips"},
		{`{}`, "IP=10.1.1", "CNI_ARGS: IP"},
		{`{}`, "K8S_POD_NAMESPACE=" + strings.Repeat("n", 64), "K8S_POD_NAMESPACE"},
		{`{}`, "K8S_POD_NAME=a\xffb", "K8S_POD_NAME"},
		{`{}`, "K8S_POD_NAME=a\nb", "K8S_POD_NAME"},
	} {
		_, err := parse(c.stdin, c.args)
		class := ErrNetConf
		if c.args != "" {
			class = ErrArgs
		}
		if !errors.Is(err, class) || !strings.Contains(err.Error(), c.key) {
			t.Errorf("%s %q: %v", c.stdin, c.args, err)
		}
	}
}

func TestSubnet(t *testing.T) {
	dir := t.TempDir()
	if _, err := LoadSubnet(dir); !errors.Is(err, ErrNoSubnet) {
		t.Errorf("missing file: %v", err)
	}
	for content, says := range map[string]string{
		``:                                     "",
		`{"podCIDRs":["10.1.1.0/24"`:           "",
		`{"podCIDRs":[]}`:                      "podCIDRs: empty",
		`{"podCIDRs":["10.1.1.0"]}`:            "not a CIDR block",
		`{"podCIDRs":["10.1.1.0/31"]}`:         "no room",
		`{"podCIDRs":["::ffff:10.1.1.0/120"]}`: "not a CIDR block",
		`{"podCIDRs":["10.1.0.0/16","10.1.1.0/24"]}`:        "overlap",
		`{"podCIDRs":["10.1.1.0/24"],"clusterCIDRs":["x"]}`: "clusterCIDRs",
		`{"podCIDRs":["10.1.1.0/24"],"reserved":["x"]}`:     "reserved",
		`{"podCIDRs":["10.1.1.0/24"],"mtu":68}`:             "mtu",
		`{"podCIDRs":["10.1.1.0/24"],"mtu":70000}`:          "mtu",
		`{"podCIDRs":"10.1.1.0/24"}`:                        "podCIDRs",
	} {
		if err := os.WriteFile(filepath.Join(dir, SubnetFile), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadSubnet(dir); !errors.Is(err, ErrNoSubnet) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", content, err)
		}
	}
	p, err := ParseSubnet([]byte(`{"podCIDRs":["10.1.1.7/24","fd00:1::/64"],"clusterCIDRs":["10.1.0.0/16"]}`))
	if err != nil || p.MTU != 1500 || p.Blocks[0] != netip.MustParsePrefix("10.1.1.0/24") {
		t.Errorf("%+v, %v", p, err)
	}
	if b, ok := p.Block(netip.MustParseAddr("fd00:1::9")); !ok || mesh.Gateway(b) != netip.MustParseAddr("fd00:1::1") {
		t.Errorf("block %v", b)
	}
	if _, ok := p.Block(netip.MustParseAddr("10.1.2.1")); ok {
		t.Error("an address outside has a block")
	}
}

func TestMAC(t *testing.T) {
	if got := PodMAC(netip.MustParseAddr("10.244.1.5")).String(); got != "0a:58:0a:f4:01:05" {
		t.Errorf("IPv4: %s", got)
	}
	seen := map[string]string{}
	for _, s := range []string{"fd00::5", "fd00::6", "fd01::5"} {
		seen[PodMAC(netip.MustParseAddr(s)).String()] = s
	}
	for _, s := range []string{"edgemesh-br", "other-br"} {
		seen[BridgeMAC(s).String()] = s
	}
	if len(seen) != 5 {
		t.Errorf("equal addresses: %v", seen)
	}
	for mac := range seen {
		if !strings.HasPrefix(mac, "0e:") { // local and unicast
			t.Errorf("MAC %s", mac)
		}
	}
}

func TestStatefulSetPod(t *testing.T) {
	for name, want := range map[string]bool{
		"web-0": true, "web-12": true, "my-db-3": true, "a-10000": true,
		"web": false, "web-": false, "-1": false, "web-01": false, "web-x1": false, "web-5d9c7b7f6b-x2x9z": false,
		"web-5d9c7b7f6b-42429": false, // a Deployment's pod with digits only
		"kube-proxy-abcde":     false,
	} {
		if got := StatefulSetPod(name); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func FuzzNetConf(f *testing.F) {
	f.Add(`{"cniVersion":"1.0.0","name":"edgemesh","exclude":["10.1.1.1-10.1.1.9"],"keepFor":"1h","runtimeConfig":{"ips":["10.1.1.5/24"]}}`, "K8S_POD_NAMESPACE=a;K8S_POD_NAME=b;IP=10.1.1.1")
	f.Add(`{"ips":null,"args":{"cni":{}},"prevResult":{}}`, ";;=;")
	f.Fuzz(func(t *testing.T, stdin, args string) {
		c, err := parse(stdin, args)
		if err != nil {
			if !errors.Is(err, ErrNetConf) && !errors.Is(err, ErrArgs) {
				t.Fatalf("error of no class: %v", err)
			}
			return
		}
		if c.DataDir[0] != '/' || c.Bridge == "" || strings.Contains(c.Pod.Name+c.Pod.Namespace, "/") || c.Keep < 0 {
			t.Fatalf("%+v", c)
		}
		for _, r := range c.Excluded {
			if !r.Contains(r.First) || !r.Contains(r.Last) {
				t.Fatalf("range %v", r)
			}
		}
	})
}

func FuzzSubnet(f *testing.F) {
	b, _ := json.Marshal(Subnet{PodCIDRs: []string{"10.1.1.0/24", "fd00::/64"}, ClusterCIDRs: []string{"10.1.0.0/16"}, MTU: 1400})
	f.Add(b)
	f.Add([]byte(`{"podCIDRs":["0.0.0.0/0"]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := ParseSubnet(b)
		if err != nil {
			return
		}
		for _, block := range p.Blocks {
			if !block.Contains(mesh.Gateway(block)) || !block.Contains(mesh.LastAddr(block)) || block.Contains(mesh.LastAddr(block).Next()) {
				t.Fatalf("block %v: gateway %v, last %v", block, mesh.Gateway(block), mesh.LastAddr(block))
			}
		}
	})
}

// An agent that starts a moment later than the pod is waited for; one that does not
// come is not waited for longer than requested.
func TestAwaitSubnet(t *testing.T) {
	dir := t.TempDir()
	if _, err := AwaitSubnet(dir, 0); !errors.Is(err, ErrNoSubnet) {
		t.Errorf("without a file: %v", err)
	}
	written := make(chan error, 1)
	go func() {
		time.Sleep(2 * subnetPoll) // sleep: the agent starts later
		written <- os.WriteFile(filepath.Join(dir, SubnetFile), []byte(`{"podCIDRs":["10.244.1.0/24"],"clusterCIDRs":["10.244.0.0/16"],"mtu":1500}`), 0o644)
	}()
	if _, err := AwaitSubnet(dir, time.Minute); err != nil {
		t.Errorf("with a file that comes later: %v", err)
	}
	if err := <-written; err != nil {
		t.Fatal(err)
	}
}

func TestLinkLocal(t *testing.T) {
	// RFC 4291, appendix A: 34-56-78-9A-BC-DE.
	got := LinkLocal(net.HardwareAddr{0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde})
	if want := netip.MustParseAddr("fe80::3656:78ff:fe9a:bcde"); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
