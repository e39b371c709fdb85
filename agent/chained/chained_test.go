package chained

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"edgemesh/internal/cni/ipam"
)

// bench is a runtime's cache and a portmap that writes down its calls; CHECK fails.
type bench struct {
	t     *testing.T
	n     Network
	calls string
}

func newBench(t *testing.T) *bench {
	dir := t.TempDir()
	b := &bench{t: t, n: Network{Name: "edgemesh", BinDir: dir, CacheDir: filepath.Join(dir, "cache")}, calls: filepath.Join(dir, "calls")}
	script := "#!/bin/sh\ncat > /dev/null\necho $CNI_COMMAND $CNI_CONTAINERID >> " + b.calls + "\n[ $CNI_COMMAND != CHECK ]\n"
	if err := os.WriteFile(filepath.Join(dir, "portmap"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return b
}

// cache notes an attachment below dir, as libcni does.
func (b *bench) cache(dir, container string) {
	b.t.Helper()
	config := `{"cniVersion": "1.0.0", "name": "edgemesh", "plugins": [{"type": "edgemesh-cni"}, {"type": "portmap", "capabilities": {"portMappings": true}}]}`
	text, err := json.Marshal(map[string]any{
		"kind": "cniCacheV1", "containerId": container, "config": []byte(config), "ifName": "eth0", "networkName": "edgemesh",
		"cniArgs":        [][2]string{{"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", container}},
		"capabilityArgs": map[string]any{"portMappings": []map[string]any{{"hostPort": 80, "containerPort": 80, "protocol": "tcp"}}},
		"result":         map[string]any{"cniVersion": "1.0.0", "ips": []map[string]any{{"address": "10.244.1.2/24"}, {"address": "fd00:1::2/64"}}},
	})
	results := filepath.Join(b.n.CacheDir, dir, "results")
	if err == nil {
		err = os.MkdirAll(results, 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(results, "edgemesh-"+container+"-eth0"), text, 0o600)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// lives has Living return one list of containers after the other, the last one from then on.
func (b *bench) lives(lists ...string) {
	b.n.Living = func() (out []ipam.Living, err error) {
		for c := range strings.FieldsSeq(lists[0]) {
			out = append(out, ipam.Living{Owner: ipam.Owner{ContainerID: c, IfName: "eth0"}})
		}
		if len(lists) > 1 {
			lists = lists[1:]
		}
		return out, nil
	}
}

func (b *bench) called(want ...string) {
	b.t.Helper()
	text, _ := os.ReadFile(b.calls)
	if got := strings.FieldsFunc(string(text), func(r rune) bool { return r == '\n' }); !slices.Equal(got, want) {
		b.t.Errorf("calls %q, want %q", got, want)
	}
}

func (b *bench) restore() []Again {
	b.t.Helper()
	again, err := b.n.Restore(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	return again
}

// A plugin whose CHECK is content is called all the same where no jump leads to its rules.
func TestUnhooked(t *testing.T) {
	b := newBench(t)
	if err := os.WriteFile(filepath.Join(b.n.BinDir, "portmap"), []byte("#!/bin/sh\ncat > /dev/null\necho $CNI_COMMAND $CNI_CONTAINERID >> "+b.calls+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	b.cache("", "a")
	b.lives("a")
	b.restore()
	b.n.Unhooked = func() []string { return []string{"portmap"} }
	if again := b.restore(); len(again) != 1 || again[0].Err != nil {
		t.Errorf("restored %+v", again)
	}
	b.called("CHECK a", "ADD a")
}

// A pod that goes while others are looked at gets no rules, and one whose own DEL was before the ADD loses them again.
func TestPodGoes(t *testing.T) {
	b := newBench(t)
	b.cache("", "a")
	b.cache("", "b")
	b.lives("a b", "a b", "a") // at the begin, before the ADD of a, of b
	again := b.restore()
	b.called("CHECK a", "ADD a", "CHECK b")
	if len(again) != 1 || again[0].Pod != "default/a" || again[0].Err != nil {
		t.Fatalf("restored %+v", again)
	}
	if left, err := b.n.Forget(t.Context(), again); len(left) > 0 || err != nil {
		t.Error(left, err)
	}
	b.called("CHECK a", "ADD a", "CHECK b")
	b.lives("")
	if left, err := b.n.Forget(t.Context(), again); len(left) > 0 || err != nil {
		t.Error(left, err)
	}
	b.called("CHECK a", "ADD a", "CHECK b", "DEL a")
}

// Pods whose network Multus delegated to us have their results in its own cache. Those that a runtime left behind are not looked at.
func TestCaches(t *testing.T) {
	b := newBench(t)
	b.cache(multusDir, "m")
	b.cache("", "stale")
	b.lives("m")
	if again := b.restore(); len(again) != 1 || again[0].Pod != "default/m" {
		t.Errorf("restored %+v", again)
	}
	b.called("CHECK m", "ADD m")
}

// A plugin that is not there is named by pod.
func TestNoPlugin(t *testing.T) {
	b := newBench(t)
	b.cache("", "a")
	b.lives("a")
	if err := os.Remove(filepath.Join(b.n.BinDir, "portmap")); err != nil {
		t.Fatal(err)
	}
	if again := b.restore(); len(again) != 1 || again[0].Pod != "default/a" || again[0].Err == nil {
		t.Errorf("restored %+v", again)
	}
}

// In a container the plugins have the iptables with which the runtime's have made the rules: where they are there, ADD is not called;
// otherwise it uses what the host uses, and the end of a pod removes both.
func TestPrograms(t *testing.T) {
	b := newBench(t)
	b.cache("", "a")
	b.lives("a")
	script := "#!/bin/sh\ncat > /dev/null\necho $CNI_COMMAND $(iptables) >> " + b.calls + "\n[ $CNI_COMMAND != CHECK ] || [ -e " + b.n.BinDir + "/rules-$(iptables) ]\n"
	write := func(name, text string) {
		path := filepath.Join(b.n.BinDir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write("portmap", script)
	for _, backend := range []string{"legacy", "nft"} {
		write(backend+"/iptables", "#!/bin/sh\necho "+backend+"\n")
		b.n.Programs = append(b.n.Programs, filepath.Join(b.n.BinDir, backend))
	}
	again := b.restore()
	b.called("CHECK legacy", "CHECK nft", "ADD legacy")
	write("rules-nft", "")
	if more := b.restore(); len(more) > 0 {
		t.Errorf("restored %+v", more)
	}
	b.called("CHECK legacy", "CHECK nft", "ADD legacy", "CHECK legacy", "CHECK nft")
	b.lives("")
	if left, err := b.n.Forget(t.Context(), again); len(left) > 0 || err != nil {
		t.Error(left, err)
	}
	b.called("CHECK legacy", "CHECK nft", "ADD legacy", "CHECK legacy", "CHECK nft", "DEL legacy", "DEL nft")
}

// Where /proc/sys is read-only portmap's ADD ends behind IPv4's rules: the pod is whole if IPv6's are made, too, and named if not.
func TestADDEndsBehindIPv4(t *testing.T) {
	for _, ip6tables := range []bool{true, false} {
		b := newBench(t)
		b.cache("", "a")
		b.lives("a")
		portmap := `#!/bin/sh
in=$(cat)
echo $CNI_COMMAND >> ` + b.calls + `
cd ` + b.n.BinDir + `
case $CNI_COMMAND in
CHECK) [ -e v4 ] && [ -e v6 ] ;;
ADD)
	case $in in *10.244.1.2*) touch v4; exit 1 ;; esac
	case $in in *fd00:1::2*) ` + map[bool]string{true: "touch v6", false: "exit 1"}[ip6tables] + ` ;; esac ;;
esac
`
		if err := os.WriteFile(filepath.Join(b.n.BinDir, "portmap"), []byte(portmap), 0o755); err != nil {
			t.Fatal(err)
		}
		again := b.restore()
		if len(again) != 1 || (again[0].Err == nil) != ip6tables {
			t.Errorf("ip6tables %t: %+v", ip6tables, again)
		}
	}
}
