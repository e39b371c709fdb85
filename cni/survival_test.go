package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
)

var dualStack = []string{"10.244.1.0/24", "fd00:1::/64"}

// The same 50 pods have the same 50 addresses after a power cut, whatever
// DELs come, and so after the next.
func TestReboot(t *testing.T) {
	n := newNode(t, dualStack...)
	before := map[string][]string{}
	var pods []*pod
	for i := range 50 {
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
	if err := ping(pods[0].netns, pods[49].addrs()[0]); err != nil {
		t.Error(err)
	}
	if f := n.records(); len(f) != 100 {
		t.Errorf("%d files for 100 addresses", len(f))
	}
}

// What edge platforms were seen to call after a power cycle, and kubelet after
// its own restart. The pod gets its address back and keeps it.
func TestEdgeSequences(t *testing.T) {
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
			if err := ping(current.netns, "10.244.1.1"); err != nil {
				t.Error(err)
			}
		})
	}
}

// A pod of the same name but another UID does not take the address of one that
// still runs, as happens when a StatefulSet's pod is deleted by force.
func TestForcedReplacement(t *testing.T) {
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

// A full pool refuses with the numbers, and reuses in the right order.
func TestFullPool(t *testing.T) {
	n := newNode(t, "10.244.1.0/29")
	var pods []*pod
	for i := range 5 {
		pods = append(pods, n.add(fmt.Sprintf("p%d", i)))
	}
	_, err := n.tryAdd("late", nil)
	wantCode(t, err, 100, "5 in use", "0 kept", "5 usable", "block")
	pods[3].del()
	pods[1].del()
	_, err = n.tryAdd("wants", map[string]any{"runtimeConfig": map[string]any{"ips": []string{"10.244.1.2/29"}}})
	wantCode(t, err, 101, "10.244.1.2")
	wantEqual(t, "the pod gone longest gives its address", n.add("new").addrs(), pods[3].addrs())
	wantEqual(t, "kept", n.add("p1").addrs(), pods[1].addrs())
}

// Asking for an address, each way.
func TestRequestedAddress(t *testing.T) {
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

// faultBinary builds the plugin that dies on request.
func faultBinary(t *testing.T) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "edgemesh-cni")
	if err := build(out, "-tags", "faultpoints", "."); err != nil {
		t.Fatal(err)
	}
	return out
}

// sound checks what must hold after any kill: no two interfaces with one
// address, each with its record, and one file per address.
func (n *node) sound() error {
	var errs []error
	holder := map[string]string{}
	err := n.netns.Do(func(ns.NetNS) error {
		links, err := netlink.LinkList()
		for _, l := range links {
			f := strings.Fields(l.Attrs().Alias)
			if len(f) < 5 || l.Attrs().OperState != netlink.OperUp {
				continue
			}
			for _, a := range strings.Split(f[2], ",") {
				if other, ok := holder[a]; ok {
					errs = append(errs, fmt.Errorf("%s on %s and %s", a, other, l.Attrs().Name))
				}
				holder[a] = f[4]
			}
		}
		return err
	})
	files := map[string]bool{}
	for _, f := range n.records() {
		if strings.HasPrefix(f, ".tmp") {
			continue
		}
		a, _, _ := strings.Cut(f, "_")
		if files[a] {
			errs = append(errs, fmt.Errorf("two files for %s", a))
		}
		files[a] = true
		b, err := os.ReadFile(filepath.Join(n.data, f))
		var r struct {
			ContainerID string
			Released    time.Time
		}
		if err := errors.Join(err, json.Unmarshal(b, &r)); err != nil {
			errs = append(errs, err)
		}
		if c, ok := holder[a]; ok && (c != r.ContainerID || !r.Released.IsZero()) {
			errs = append(errs, fmt.Errorf("%s is on the interface of %s, its record says %+v", a, c, r))
		}
	}
	for a := range holder {
		if !files[a] {
			errs = append(errs, fmt.Errorf("%s has no record", a))
		}
	}
	return errors.Join(append(errs, err)...)
}

// clean removes all that is left and checks that nothing leaks.
func (n *node) clean(valid ...*pod) error {
	list := []map[string]string{}
	for _, p := range valid {
		list = append(list, map[string]string{"containerID": p.id, "ifname": "eth0"})
	}
	if _, err := n.call("GC", "", "", "", n.netconf(map[string]any{"cni.dev/valid-attachments": list})); err != nil {
		return err
	}
	if u, v := n.used(), n.veths(); len(u) != 2*len(valid) || len(v) != len(valid) {
		return fmt.Errorf("leaked: %v %v with %d valid", u, v, len(valid))
	}
	return nil
}

// The plugin dies after each single step of each verb. The next calls work,
// nothing is given twice and nothing leaks.
func TestKilledAtEachStep(t *testing.T) {
	plugin := faultBinary(t)
	for _, verb := range []string{"ADD", "ADD on a new node", "ADD instead of another", "ADD with the oldest's address", "DEL", "GC"} {
		t.Run(verb, func(t *testing.T) {
			log := filepath.Join(t.TempDir(), "points")
			steps := 0
			for step := 0; step == 0 || step <= steps; step++ {
				// Step 0 dies nowhere and counts.
				n := newNode(t, "10.244.1.0/29", "fd00:1::/125")
				var stay *pod
				if verb != "ADD on a new node" {
					stay = n.add("stay")
				}
				victim := &pod{node: n, name: "victim", id: "victim-0", netns: newNS(t)}
				n.plugin, n.env = plugin, nil
				arm := func() {
					n.env = []string{"EDGEMESH_FAULT=" + strconv.Itoa(step)}
					if step == 0 {
						n.env = []string{"EDGEMESH_FAULT_LOG=" + log}
					}
				}
				add := func() error {
					_, err := n.call("ADD", victim.id, victim.netns.Path(), args("victim", "u"), n.netconf(nil))
					return err
				}
				var err error
				switch verb {
				case "ADD", "ADD on a new node":
					arm()
					err = add()
				case "ADD instead of another":
					if err := add(); err != nil {
						t.Fatal(err)
					}
					victim.id, victim.netns = "victim-1", newNS(t)
					arm()
					err = add()
				case "ADD with the oldest's address":
					for i := range 4 {
						n.add(fmt.Sprintf("gone-%d", i)).del()
					}
					arm()
					err = add()
				case "DEL":
					if err := add(); err != nil {
						t.Fatal(err)
					}
					arm()
					_, err = n.call("DEL", victim.id, victim.netns.Path(), args("victim", "u"), n.netconf(nil))
				case "GC":
					if err := add(); err != nil {
						t.Fatal(err)
					}
					arm()
					_, err = n.call("GC", "", "", "", n.netconf(map[string]any{"cni.dev/valid-attachments": []any{
						map[string]string{"containerID": stay.id, "ifname": "eth0"}}}))
				}
				n.env = nil
				if step == 0 {
					if err != nil {
						t.Fatal(err)
					}
					b, err := os.ReadFile(log)
					if err != nil {
						t.Fatal(err)
					}
					steps = bytes.Count(b, []byte("\n"))
					t.Logf("%s: %d steps", verb, steps)
				} else if err == nil || !strings.Contains(err.Error(), "killed") {
					t.Fatalf("step %d: %v", step, err)
				}
				fail := func(what string, err error) {
					t.Helper()
					if err != nil {
						t.Fatalf("step %d of %s: %s: %v", step, verb, what, err)
					}
				}
				fail("after the kill", n.sound())
				again, err := n.tryAdd("victim", nil)
				fail("next ADD of the pod", err)
				other, err := n.tryAdd("other", nil)
				fail("next ADD of another", err)
				fail("after the next ADDs", n.sound())
				fail("CHECK", again.check())
				fail("CHECK", other.check())
				valid := []*pod{again, other}
				if stay != nil {
					fail("CHECK of the pod that stayed", stay.check())
					valid = append(valid, stay)
				}
				fail("GC", n.clean(valid...))
				fail("GC of all", n.clean())
				for _, c := range append(valid, victim) {
					dropNS(c.netns)
				}
				dropNS(n.netns)
			}
		})
	}
}

// The plugin dies at random moments, EDGEMESH_KILLS times (60 by default).
func TestKilledAtRandom(t *testing.T) {
	kills := 60
	if s := os.Getenv("EDGEMESH_KILLS"); s != "" {
		var err error
		if kills, err = strconv.Atoi(s); err != nil {
			t.Fatalf("EDGEMESH_KILLS: %v", err)
		}
	}
	n := newNode(t, "10.244.1.0/27", "fd00:1::/123")
	running := map[string]*pod{} // by pod name, what the runtime believes in
	died := 0
	for i := range 4 * kills {
		if died == kills {
			break
		}
		name := fmt.Sprintf("p%d", rand.IntN(24))
		p, verb := running[name], "DEL"
		if p == nil || rand.IntN(3) == 0 {
			p, verb = &pod{node: n, name: name, id: fmt.Sprintf("%s-%d", name, i), netns: newNS(t)}, "ADD"
		}
		killed, out, err := n.callAndKill(verb, p, time.Duration(rand.IntN(30_000))*time.Microsecond)
		switch {
		case killed:
			died++
			if verb == "ADD" && rand.IntN(2) == 0 { // a runtime may clean up, or may not
				p.del()
			}
			if verb == "ADD" {
				dropNS(p.netns)
			}
			if old := running[name]; verb == "ADD" && old != nil && old.check() != nil {
				dropNS(old.netns)
				delete(running, name)
			}
		case err != nil:
			t.Fatalf("%s %s: %v", verb, p.id, err)
		case verb == "ADD":
			if p.result, err = parseResult(out); err != nil {
				t.Fatal(err)
			}
			if old := running[name]; old != nil {
				dropNS(old.netns)
			}
			running[name] = p
		default:
			dropNS(p.netns)
			delete(running, name)
		}
		if err := n.sound(); err != nil {
			t.Fatalf("after %d kills, %s of %s: %v", died, verb, p.id, err)
		}
	}
	var valid []*pod
	for _, p := range running {
		if p.check() == nil { // DEL may have been killed half-way
			valid = append(valid, p)
		}
	}
	if err := n.clean(valid...); err != nil {
		t.Error(err)
	}
	n.add("after")
	t.Logf("%d kills, %d pods running", died, len(running))
}

// callAndKill kills the plugin after a while, if it still runs then.
func (n *node) callAndKill(verb string, p *pod, after time.Duration) (killed bool, out []byte, err error) {
	var stdout bytes.Buffer
	ctx, cancel := context.WithTimeout(context.Background(), after)
	defer cancel()
	cmd := exec.CommandContext(ctx, n.plugin)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + p.id,
		"CNI_NETNS=" + p.netns.Path(), "CNI_IFNAME=eth0", "CNI_PATH=" + binDir, "CNI_ARGS=" + args(p.name, "uid-"+p.name)}
	cmd.Stdin, cmd.Stdout = bytes.NewReader(n.netconf(nil)), &stdout
	err = n.netns.Do(func(ns.NetNS) error { return cmd.Run() })
	if ctx.Err() != nil && err != nil {
		return true, nil, nil
	}
	if err != nil {
		err = fmt.Errorf("%w: %s", err, &stdout)
	}
	return false, stdout.Bytes(), err
}
