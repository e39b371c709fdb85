package main_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"edgemesh/test/tier"
)

var dualStack = []string{"10.244.1.0/24", "fd00:1::/64"}

// The same pods have the same addresses after a power cut, whatever DELs come, and so after the next.
func TestReboot(t *testing.T) {
	t.Parallel()
	const many = 12
	n := newNode(t, dualStack...)
	before := map[string][]string{}
	var pods []*pod
	for i := range many {
		p := n.add(fmt.Sprintf("web-%d", i))
		pods = append(pods, p)
		before[p.name] = p.addrs()
	}
	for boot := range 2 {
		for _, p := range pods {
			dropNS(p.netns)
		}
		n.reboot(dualStack...)
		rand.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
		for i, p := range pods {
			for range i % 3 { // none, one or two DELs
				if _, err := n.call("DEL", p.id, "", args(p.name, ""), n.netconf(nil)); err != nil {
					t.Fatal(err)
				}
			}
			pods[i] = n.add(p.name)
			wantEqual(t, fmt.Sprintf("%s after reboot %d", p.name, boot+1), pods[i].addrs(), before[p.name])
		}
	}
	if err := answers(pods[0].netns, pods[many-1].addrs()[0]); err != nil {
		t.Error(err)
	}
	if f := n.records(); len(f) != 2*many {
		t.Errorf("%d files for %d addresses", len(f), 2*many)
	}
}

// What edge platforms were seen to call after a power cycle, and kubelet after
// its own restart. The pod gets its address back and keeps it.
func TestEdgeSequences(t *testing.T) {
	t.Parallel()
	// Steps: reboot; DEL N (the container of the Nth ADD, no namespace, no
	// prevResult); DEL+ N (with its namespace path, which is gone); ADD.
	for name, steps := range map[string][]string{
		"KubeEdge":                            {"reboot", "DEL 1", "ADD"},
		"KubeEdge, DEL repeated":              {"reboot", "DEL 1", "DEL 1", "ADD", "DEL 1"},
		"KubeEdge, pod that could not start":  {"reboot", "reboot", "ADD"},
		"OpenYurt, sandboxes of three boots":  {"reboot", "ADD", "reboot", "DEL 1", "DEL 1", "DEL 2", "ADD", "DEL 1"},
		"kubelet retries before DEL":          {"ADD", "DEL 1"},
		"kubelet retries twice, DELs late":    {"reboot", "ADD", "ADD", "DEL 1", "DEL 2"},
		"DEL with a path that is gone":        {"reboot", "DEL+ 1", "ADD"},
		"StatefulSet pod comes back later":    {"DEL 1", "other", "other", "ADD"},
		"all DELs lost, others come first":    {"reboot", "other", "other", "ADD"},
		"agent late: ADD fails until subnet":  {"reboot", "no subnet", "ADD fails", "DEL 2", "subnet", "ADD"},
		"DEL of old container after new's":    {"ADD", "DEL 2", "DEL 1", "ADD"},
		"kubelet retries, the first survives": {"ADD", "ADD", "DEL 2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, dualStack...)
			n.add("first")
			containers := []*pod{n.add("web-0")}
			want := containers[0].addrs()
			current := containers[0]
			others := 0
			for _, s := range steps {
				verb, arg, _ := strings.Cut(s, " ")
				switch verb {
				case "reboot":
					for _, c := range containers {
						dropNS(c.netns)
					}
					n.reboot(dualStack...)
				case "no":
					if err := os.Remove(filepath.Join(n.run, "subnet.json")); err != nil {
						t.Fatal(err)
					}
				case "subnet":
					n.subnet(dualStack...)
				case "other":
					others++
					if p := n.add(fmt.Sprintf("other-%d", others)); slices.Contains(p.addrs(), want[0]) {
						t.Fatalf("the address was given to another pod")
					}
				case "DEL", "DEL+":
					i, err := strconv.Atoi(arg)
					if err != nil {
						t.Fatal(err)
					}
					c := containers[i-1]
					path := ""
					if verb == "DEL+" {
						path = c.netns.Path()
					}
					if _, err := n.call("DEL", c.id, path, args("web-0", ""), n.netconf(nil)); err != nil {
						t.Fatalf("%s: %v", s, err)
					}
					if c == current {
						current = nil
					}
				case "ADD":
					p, err := n.tryAdd("web-0", nil)
					containers = append(containers, p)
					if arg == "fails" {
						wantCode(t, err, types.ErrTryAgainLater, "edgemesh-agent")
						continue
					}
					if err != nil {
						t.Fatal(err)
					}
					wantEqual(t, "addresses after "+s, p.addrs(), want)
					current = p
				}
			}
			if current == nil {
				return
			}
			if err := current.check(); err != nil {
				t.Fatal(err)
			}
			if err := answers(current.netns, "10.244.1.1"); err != nil {
				t.Error(err)
			}
		})
	}
}

// A pod of the same name but another UID does not take the address of one that
// still runs, as happens when a StatefulSet's pod is deleted by force.
func TestForcedReplacement(t *testing.T) {
	t.Parallel()
	n := newNode(t, "10.244.1.0/24")
	old := n.add("web-0")
	netns := newNS(t)
	out, err := n.call("ADD", "new", netns.Path(), args("web-0", "another-uid"), n.netconf(nil))
	if err != nil {
		t.Fatal(err)
	}
	res, err := parseResult(out)
	if err != nil {
		t.Fatal(err)
	}
	if got := res.IPs[0].Address.IP.String(); got == old.addrs()[0] {
		t.Fatalf("both have %s", got)
	}
	if err := old.check(); err != nil {
		t.Error(err)
	}
}

// Cut, empty and foreign files in the store stop no pod.
func TestDamagedStore(t *testing.T) {
	t.Parallel()
	n := newNode(t, dualStack...)
	var pods []*pod
	for i := range 6 {
		pods = append(pods, n.add(fmt.Sprintf("web-%d", i)))
	}
	for _, p := range pods {
		dropNS(p.netns)
	}
	n.reboot(dualStack...)
	for i, f := range n.records() {
		path := filepath.Join(n.data, f)
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, b[:i*len(b)/13], 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"lock", "last_reserved_ip.0", "notes", "10.244.1.300_a_b", ".tmp0"} {
		if err := os.WriteFile(filepath.Join(n.data, f), []byte("rubbish"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range pods {
		again := n.add(p.name)
		wantEqual(t, p.name, again.addrs(), p.addrs())
	}
	if u := n.usedIgnoring(); len(u) != 12 {
		t.Errorf("in use: %v", u)
	}
}

// usedIgnoring is used for a store with foreign files in it.
func (n *node) usedIgnoring() []string {
	n.t.Helper()
	var out []string
	for _, f := range n.records() {
		var r struct {
			IP       string
			Released time.Time
		}
		b, err := os.ReadFile(filepath.Join(n.data, f))
		if err == nil && json.Unmarshal(b, &r) == nil && r.Released.IsZero() {
			out = append(out, r.IP)
		}
	}
	return out
}

// A disk without space: ADD says so and changes nothing, DEL works.
func TestFullDisk(t *testing.T) {
	n := newNode(t, dualStack...)
	n.data = filepath.Join(t.TempDir(), "small")
	if err := os.MkdirAll(n.data, 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", n.data).CombinedOutput(); err != nil {
		t.Fatalf("mount: %v %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("umount", n.data).Run() })
	p := n.add("web-0")
	q := n.add("web-1")
	q.del()
	fill := filepath.Join(n.data, "filler")
	f, err := os.Create(fill)
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	files := n.records()
	_, err = n.tryAdd("web-1", nil)
	wantCode(t, err, types.ErrIOFailure, "no space left", "free space")
	wantEqual(t, "files", n.records(), files)
	p.del() // must not fail: the pod's end may free the disk
	if v := n.veths(); len(v) != 0 {
		t.Errorf("interfaces %v", v)
	}
	if err := os.Remove(fill); err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "web-1", n.add("web-1").addrs(), q.addrs())
	wantEqual(t, "web-0", n.add("web-0").addrs(), p.addrs())
}

// A full block refuses with the numbers, and reuses in the right order. Package ipam fills a /24.
func TestFullPool(t *testing.T) {
	t.Parallel()
	n := newNode(t, "10.244.1.0/28")
	pods := make([]*pod, 13)
	errs := make(chan error, len(pods))
	for i := range pods {
		go func() {
			var err error
			pods[i], err = n.tryAdd(fmt.Sprintf("p%d", i), nil)
			errs <- err
		}()
	}
	for range pods {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	seen := map[string]bool{}
	for _, p := range pods {
		seen[p.addrs()[0]] = true
	}
	if len(seen) != len(pods) || seen["10.244.1.0"] || seen["10.244.1.1"] || seen["10.244.1.15"] {
		t.Fatalf("%d different addresses", len(seen))
	}
	_, err := n.tryAdd("late", nil)
	wantCode(t, err, 100, "13 in use", "0 kept", "13 usable", "block")
	pods[3].del()
	pods[1].del()
	_, err = n.tryAdd("wants", map[string]any{"runtimeConfig": map[string]any{"ips": []string{pods[0].addrs()[0] + "/24"}}})
	wantCode(t, err, 101, pods[0].addrs()[0])
	wantEqual(t, "the pod gone longest gives its address", n.add("new").addrs(), pods[3].addrs())
	wantEqual(t, "kept", n.add("p1").addrs(), pods[1].addrs())
	_, err = n.tryAdd("late", nil)
	wantCode(t, err, 100, "13 in use")
}

// Names at Kubernetes' limits: the files' names are cut, the content is whole,
// and two pods whose shortened names begin with the same letters do not share an address.
func TestLongNames(t *testing.T) {
	t.Parallel()
	n := newNode(t, "10.244.1.0/24", "fd00:1::/64")
	ns63, pod253 := strings.Repeat("n", 63), strings.Repeat("p", 252)
	var addrs []string
	for _, end := range []string{"a", "b"} {
		cniArgs := "IgnoreUnknown=1;K8S_POD_NAMESPACE=" + ns63 + ";K8S_POD_NAME=" + pod253 + end
		for try := range 2 {
			id := fmt.Sprintf("%s%d", end, try)
			netns := newNS(t)
			out, err := n.call("ADD", id, netns.Path(), cniArgs, n.netconf(nil))
			if err != nil {
				t.Fatal(err)
			}
			res, err := parseResult(out)
			if err != nil {
				t.Fatal(err)
			}
			got := (&pod{result: res}).addrs()
			if try == 0 {
				addrs = append(addrs, got...)
			} else {
				wantEqual(t, "again", got, addrs[len(addrs)-2:])
			}
			if _, err := n.call("DEL", id, netns.Path(), cniArgs, n.netconf(nil)); err != nil {
				t.Fatal(err)
			}
		}
	}
	wantEqual(t, "addresses", addrs, []string{"10.244.1.2", "fd00:1::2", "10.244.1.3", "fd00:1::3"})
	for _, f := range n.records() {
		b, err := os.ReadFile(filepath.Join(n.data, f))
		if err != nil {
			t.Fatal(err)
		}
		if !regexp.MustCompile(`~[0-9a-f]{16}$`).MatchString(f) || len(f) != 255 ||
			!strings.Contains(string(b), `"`+ns63+`"`) || !strings.Contains(string(b), pod253) {
			t.Errorf("%s (%d bytes): %s", f, len(f), b)
		}
	}
}

// What keepOnly and keepFor leave in the store.
func TestKeepOptions(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		options map[string]any
		pod     string
		files   []string
	}{
		{map[string]any{}, "web-abc", []string{"10.244.1.2_default_web-abc"}},
		{map[string]any{"keepOnly": "statefulset"}, "web-0", []string{"10.244.1.2_default_web-0"}},
		{map[string]any{"keepOnly": "statefulset"}, "web-abc", nil},
		{map[string]any{"keepOnly": "none"}, "web-0", nil},
		{map[string]any{"keepFor": "1ns"}, "web-0", []string{"10.244.1.2_default_web-0"}},
	} {
		n := newNode(t, "10.244.1.0/24")
		n.conf = c.options
		n.add(c.pod).del()
		wantEqual(t, fmt.Sprint(c.options), n.records(), c.files)
		if c.options["keepFor"] != nil { // over by now
			wantEqual(t, "after keepFor", n.add("other").addrs(), []string{"10.244.1.2"})
		}
	}
}

// A request for an address, in each form.
func TestRequestedAddress(t *testing.T) {
	t.Parallel()
	n := newNode(t, dualStack...)
	for i, c := range []struct {
		extra map[string]any
		args  string
		want  []string
	}{
		{map[string]any{"runtimeConfig": map[string]any{"ips": []string{"10.244.1.40/24"}}}, "", []string{"10.244.1.40"}},
		{map[string]any{"args": map[string]any{"cni": map[string]any{"ips": []string{"fd00:1::41", "10.244.1.41"}}}}, "", []string{"10.244.1.41", "fd00:1::41"}},
		{nil, ";IP=10.244.1.42", []string{"10.244.1.42"}},
		{map[string]any{"exclude": []string{"10.244.1.43-10.244.1.60", "10.244.1.61", "10.244.1.62/31"}}, "", []string{"10.244.1.64"}},
	} {
		name := fmt.Sprintf("p%d", i)
		out, err := n.call("ADD", name, newNS(t).Path(), args(name, name)+c.args, n.netconf(c.extra))
		if err != nil {
			t.Fatal(err)
		}
		res, err := parseResult(out)
		if err != nil {
			t.Fatal(err)
		}
		p := &pod{result: res}
		wantEqual(t, name, p.addrs()[:len(c.want)], c.want)
	}
}

// TestManyPodsTogether: a node comes back, and kubelet starts its pods in the same second. No ADD is refused, and each pod gets addresses of
// its own, at which it is reached. They go together, too, and leave nothing.
func TestManyPodsTogether(t *testing.T) {
	pods := make([]*pod, 40)
	if tier.IsLong() {
		pods = make([]*pod, 200)
	}
	n := newNode(t, dualStack...)
	together := func(what string, call func(i int) error) {
		began := time.Now()
		var wg sync.WaitGroup
		for i := range pods {
			wg.Go(func() {
				if err := call(i); err != nil {
					t.Errorf("%s of web-%d: %v", what, i, err)
				}
			})
		}
		wg.Wait()
		t.Logf("%d times %s together: %s", len(pods), what, time.Since(began).Round(time.Millisecond))
	}
	together("ADD", func(i int) (err error) {
		pods[i], err = n.tryAdd(fmt.Sprintf("web-%d", i), nil)
		return err
	})
	if t.Failed() {
		return
	}
	addrs := map[string]string{}
	for _, p := range pods {
		for _, a := range p.addrs() {
			if other := addrs[a]; other != "" {
				t.Errorf("%s has the address %s of %s", p.name, a, other)
			}
			addrs[a] = p.name
		}
	}
	if len(addrs) != 2*len(pods) || len(n.used()) != 2*len(pods) || len(n.veths()) != len(pods) {
		t.Errorf("%d addresses, %d in use, %d interfaces of %d pods", len(addrs), len(n.used()), len(n.veths()), len(pods))
	}
	for a, name := range addrs {
		if err := answers(n.netns, a); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	together("DEL", func(i int) error {
		_, err := n.call("DEL", pods[i].id, pods[i].netns.Path(), args(pods[i].name, "uid-"+pods[i].name), n.netconf(nil))
		return err
	})
	if len(n.used()) != 0 || len(n.veths()) != 0 {
		t.Errorf("left: %v, %v", n.used(), n.veths())
	}
}
