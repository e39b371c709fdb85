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
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	"edgemesh/internal/cni/podlink"
	"edgemesh/test/tier"
)

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
		links, err := podlink.Dump(netlink.LinkList)
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
		if id, ok := n.strangers[a]; ok && string(b) == stranger(id) {
			continue // still as the other plugin left it
		}
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
	for a := range n.strangers {
		if !files[a] || holder[a] != "" {
			errs = append(errs, fmt.Errorf("%s of another plugin's pod: has a record: %v, container %s", a, files[a], holder[a]))
		}
	}
	for a := range holder {
		if !files[a] {
			errs = append(errs, fmt.Errorf("%s has no record", a))
		}
	}
	return errors.Join(append(errs, err)...)
}

// stranger is what host-local writes for a container.
func stranger(id string) string { return id + "\r\neth0" }

// foreigners puts records of host-local and OpenYurt into the store.
func (n *node) foreigners() {
	n.t.Helper()
	n.strangers = map[string]string{"10.244.1.5": "local", "10.244.1.6": "yurt", "fd00:1::5": "local"}
	err := os.MkdirAll(n.data, 0o700)
	for a, id := range n.strangers {
		file := a
		if id == "yurt" {
			file += "_default_web-0"
		}
		err = errors.Join(err, os.WriteFile(filepath.Join(n.data, file), []byte(stranger(id)), 0o600))
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

// allKept keeps all addresses but one for pods that are gone. The first call's records are copied to dir, from where later calls have them.
func (n *node) allKept(dir string) {
	n.t.Helper()
	if os.CopyFS(n.data, os.DirFS(dir)) == nil {
		return
	}
	for i := range 4 {
		n.add(fmt.Sprintf("gone-%d", i)).del()
	}
	if err := os.CopyFS(dir, os.DirFS(n.data)); err != nil {
		n.t.Fatal(err)
	}
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
	for _, verb := range []string{"ADD", "ADD on a new node", "ADD instead of another", "ADD with the oldest's address", "ADD after another plugin", "DEL", "GC"} {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			log, kept := filepath.Join(t.TempDir(), "points"), filepath.Join(t.TempDir(), "kept")
			steps := 0
			for step := 0; step == 0 || step <= steps; step++ {
				// Step 0 dies nowhere and counts.
				n := newNode(t, "10.244.1.0/29", "fd00:1::/125")
				var stay *pod
				switch verb {
				case "ADD on a new node":
				case "ADD after another plugin":
					n.foreigners()
				case "ADD with the oldest's address":
					n.allKept(kept)
					stay = n.add("stay")
				default:
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
				case "ADD", "ADD on a new node", "ADD after another plugin", "ADD with the oldest's address":
					arm()
					err = add()
				case "ADD instead of another":
					if err := add(); err != nil {
						t.Fatal(err)
					}
					victim.id, victim.netns = "victim-1", newNS(t)
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
					if synced := bytes.Index(b, []byte("parent synced")); verb == "ADD on a new node" &&
						(synced < 0 || bytes.Index(b, []byte("write")) < synced) {
						t.Errorf("the new store's name is not on the disk before its first record:\n%s", b)
					}
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
				valid := []*pod{again}
				if n.strangers == nil { // else the pool of five is full
					other, err := n.tryAdd("other", nil)
					fail("next ADD of another", err)
					valid = append(valid, other)
				}
				fail("after the next ADDs", n.sound())
				for _, p := range valid {
					fail("CHECK", p.check())
				}
				n.strangers = nil // GC does not find them valid
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

// The plugin dies at random moments, EDGEMESH_KILLS times (20 by default, 60 in the full suite).
func TestKilledAtRandom(t *testing.T) {
	kills := 20
	if tier.IsLong() {
		kills = 60
	}
	if s := os.Getenv("EDGEMESH_KILLS"); s != "" {
		var err error
		if kills, err = strconv.Atoi(s); err != nil {
			t.Fatalf("EDGEMESH_KILLS: %v", err)
		}
	}
	n := newNode(t, "10.244.1.0/27", "fd00:1::/123")
	running := map[string]*pod{} // by pod name, what the runtime believes in
	died, midway := 0, 0
	start := time.Now()
	first := n.add("first")
	window := time.Since(start) // how long a call takes here and now
	first.del()
	for i := range 4 * kills {
		if died == kills {
			break
		}
		name := fmt.Sprintf("p%d", rand.IntN(24))
		p, verb := running[name], "DEL"
		if p == nil || rand.IntN(3) == 0 {
			p, verb = &pod{node: n, name: name, id: fmt.Sprintf("%s-%d", name, i), netns: newNS(t)}, "ADD"
		}
		start := time.Now()
		killed, out, err := n.callAndKill(verb, p, rand.N(window))
		switch {
		case killed:
			died++
			if b := n.mentions(p.id); (verb == "ADD") == b {
				midway++ // it left a trace
			}
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
			window = (3*window + 2*time.Since(start)) / 4 // grows with the load, and kills late as well
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
		if p.check() == nil { // DEL may have been killed midway
			valid = append(valid, p)
		}
	}
	if err := n.clean(valid...); err != nil {
		t.Error(err)
	}
	n.add("after")
	t.Logf("%d kills, %d of them between first and last step, %d pods running", died, midway, len(running))
}

// mentions reports whether a container is in use in the records.
func (n *node) mentions(id string) bool {
	for _, f := range n.records() {
		b, _ := os.ReadFile(filepath.Join(n.data, f))
		if bytes.Contains(b, []byte(`"`+id+`"`)) && !bytes.Contains(b, []byte(`"released"`)) {
			return true
		}
	}
	return false
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
