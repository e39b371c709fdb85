package main_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"edgemesh/internal/cni/conf"
	"edgemesh/test/fair"

	"github.com/containernetworking/cni/pkg/types"
)

// prefixes are the pod's addresses with their masks.
func (p *pod) prefixes() []string {
	var out []string
	for _, ip := range p.result.IPs {
		out = append(out, ip.Address.String())
	}
	return out
}

// The node gets a further block, then others instead: an address is always of a
// present block, with its mask and gateway.
func TestBlocksChange(t *testing.T) {
	t.Parallel()
	n := newNode(t, "10.244.1.0/30")
	first := n.add("web-0")
	wantEqual(t, "first", first.prefixes(), []string{"10.244.1.2/30"})
	_, err := n.tryAdd("web-1", nil)
	wantCode(t, err, 100, "1 in use")
	n.subnet("10.244.1.0/30", "10.244.9.0/24", "fd00:1::/64")
	second := n.add("web-1")
	wantEqual(t, "block added", second.prefixes(), []string{"10.244.9.2/24", "fd00:1::2/64"})
	if err := answers(second.netns, "10.244.9.1"); err != nil {
		t.Error(err)
	}
	first.del()
	second.del()
	n.subnet("10.88.0.0/25", "fd00:2::/80")
	for i, want := range [][]string{{"10.88.0.2/25", "fd00:2::2/80"}, {"10.88.0.3/25", "fd00:2::3/80"}} {
		p := n.add(fmt.Sprintf("web-%d", i))
		wantEqual(t, "blocks replaced", p.prefixes(), want)
		if err := p.check(); err != nil {
			t.Error(err)
		}
		if gw := p.result.IPs[0].Gateway.String(); gw != "10.88.0.1" {
			t.Errorf("gateway %s", gw)
		}
	}
	// The node's kubelet still reports two addresses of former blocks, inside this one.
	reserved := `{"podCIDRs":["10.244.4.0/29"],"clusterCIDRs":["10.244.0.0/16"],"mtu":1500,"reserved":["10.244.4.2","10.244.4.4"]}`
	if err := os.WriteFile(filepath.Join(n.run, "subnet.json"), []byte(reserved), 0o644); err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"10.244.4.3/29", "10.244.4.5/29", "10.244.4.6/29"} {
		wantEqual(t, "reserved", n.add(fmt.Sprintf("shop-%d", i)).prefixes(), []string{want})
	}
	_, err = n.tryAdd("shop-3", nil)
	wantCode(t, err, 100, "3 usable")
	n.subnet("10.244.1.0/30", "10.244.9.0/24", "fd00:1::/64")
	wantEqual(t, "blocks back", n.add("web-1").prefixes(), []string{"10.244.1.2/30", "fd00:1::2/64"})
}

// lockStore takes the store's lock as another call does.
func (n *node) lockStore() (unlock func()) {
	n.t.Helper()
	if err := os.MkdirAll(n.data, 0o700); err != nil {
		n.t.Fatal(err)
	}
	f, err := os.Open(n.data)
	if err == nil {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		n.t.Fatal(err)
	}
	return func() { f.Close() }
}

// lockWaited reports whether a process waits for the store's lock.
func (n *node) lockWaited() bool {
	n.t.Helper()
	var st syscall.Stat_t
	locks, err := os.ReadFile("/proc/locks")
	if err == nil {
		err = syscall.Stat(n.data, &st)
	}
	if err != nil {
		n.t.Fatal(err)
	}
	return slices.ContainsFunc(strings.Split(string(locks), "\n"), func(l string) bool {
		return strings.Contains(l, "-> FLOCK") && strings.Contains(l, fmt.Sprintf(":%d ", st.Ino))
	})
}

// The blocks are replaced while an ADD waits for the lock.
func TestBlocksChangeUnderWay(t *testing.T) {
	t.Parallel()
	n := newNode(t, "10.244.1.0/24")
	unlock := n.lockStore()
	type outcome struct {
		p   *pod
		err error
	}
	done := make(chan outcome, 1)
	go func() {
		p, err := n.tryAdd("web-0", nil)
		done <- outcome{p, err}
	}()
	fair.Eventually(t, 10*time.Second, "ADD waits for the lock", fair.True(n.lockWaited))
	n.subnet("10.88.0.0/25")
	unlock()
	got := <-done
	if got.err != nil {
		t.Fatal(got.err)
	}
	wantEqual(t, "addresses", got.p.prefixes(), []string{"10.88.0.2/25"})
}

// Calls that run are no reason to call the node not ready, and to make its
// kubelet wait.
func TestStatusWhileLocked(t *testing.T) {
	t.Parallel()
	n := newNode(t, "10.244.1.0/24")
	defer n.lockStore()()
	done := make(chan error, 1)
	go func() {
		_, err := n.call("STATUS", "", "", "", n.netconf(nil))
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(15 * time.Second): // of the 20 that ADD waits for the lock
		t.Error("STATUS waits for the lock")
	}
}

// Two networks with stores of their own on the same blocks: no address twice,
// and what is one's is not touched by the other.
func TestTwoNetworks(t *testing.T) {
	t.Parallel()
	n := newNode(t, "10.244.1.0/24", "fd00:1::/64")
	second := map[string]any{"name": "second", "dataDir": filepath.Join(t.TempDir(), "second")}
	type outcome struct {
		p   *pod
		err error
	}
	done := make(chan outcome)
	const each = 12
	for i := range 2 * each {
		var extra map[string]any
		if i%2 == 1 {
			extra = second
		}
		go func() {
			for {
				p, err := n.tryAdd(fmt.Sprintf("p%d", i), extra)
				if e := new(types.Error); !errors.As(err, &e) || e.Code != types.ErrTryAgainLater {
					done <- outcome{p, err}
					return
				}
			}
		}()
	}
	seen := map[string]string{}
	for range 2 * each {
		o := <-done
		if o.err != nil {
			t.Fatal(o.err)
		}
		for _, a := range o.p.addrs() {
			if seen[a] != "" {
				t.Errorf("%s on %s and %s", a, seen[a], o.p.name)
			}
			seen[a] = o.p.name
		}
	}
	// The first network's GC, with nothing valid, and its repair.
	if _, err := n.call("GC", "", "", "", n.netconf(map[string]any{"cni.dev/valid-attachments": []any{}})); err != nil {
		t.Fatal(err)
	}
	if v := n.veths(); len(v) != each {
		t.Errorf("%d interfaces left of the other network's %d", len(v), each)
	}
	if u := n.used(); len(u) != 0 {
		t.Errorf("in use in the first store: %v", u)
	}
	p, err := n.tryAdd("late", nil)
	if err != nil {
		t.Fatal(err)
	}
	if who := seen[p.addrs()[0]]; who != "" && who[1]%2 == 1 {
		t.Errorf("%s of the second network's %s", p.addrs()[0], who)
	}
	n.data = second["dataDir"].(string)
	if u := n.used(); len(u) != 2*each {
		t.Errorf("%d addresses in use in the second store", len(u))
	}
}

// Behind another plugin of a list: its result comes first in ours.
func TestBehindAnotherPlugin(t *testing.T) {
	t.Parallel()
	n := newNode(t, "10.244.1.0/24")
	prev := map[string]any{"cniVersion": "1.1.0",
		"interfaces": []any{map[string]any{"name": "other0"}},
		"ips":        []any{map[string]any{"address": "192.0.2.9/24", "interface": 0}},
		"dns":        map[string]any{"nameservers": []string{"192.0.2.53"}}}
	p, err := n.tryAdd("web-0", map[string]any{"prevResult": prev})
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "addresses", p.addrs(), []string{"192.0.2.9", "10.244.1.2"})
	r := p.result
	if len(r.Interfaces) != 4 || r.Interfaces[0].Name != "other0" || *r.IPs[0].Interface != 0 || r.Interfaces[*r.IPs[1].Interface].Name != "eth0" ||
		len(r.DNS.Nameservers) != 1 {
		b, _ := json.Marshal(r)
		t.Errorf("result %s", b)
	}
	if err := p.check(); err != nil {
		t.Error(err)
	}
}

// TestElsewhere: a plugin that keeps its records where the agent does not read them gives no pod a network, since no policy would hold for
// it. Other paths to the same directory, an agent that says nothing, and a directory whose content was deleted pass.
func TestElsewhere(t *testing.T) {
	t.Parallel()
	n := newNode(t, "10.244.1.0/24")
	agents := filepath.Join(t.TempDir(), "records")
	d, err := conf.MakeDirectory(agents)
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(conf.Subnet{PodCIDRs: []string{"10.244.1.0/24"}, ClusterCIDRs: []string{"10.244.0.0/16"}, MTU: 1500, Directory: d})
	if err == nil {
		err = os.WriteFile(filepath.Join(n.run, conf.SubnetFile), b, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	_, err = n.tryAdd("hidden", nil)
	wantCode(t, err, 106, n.data, agents, "dataDir", "cniDataDir", "would not see the pod")
	if _, err := os.Stat(n.data); err == nil {
		t.Error("the refused call left a directory")
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(agents, link); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{agents, link} {
		if _, err := n.tryAdd("seen", map[string]any{"dataDir": dir}); err != nil {
			t.Error(err)
		}
	}
	if err := os.Remove(filepath.Join(agents, "directory")); err != nil {
		t.Fatal(err)
	}
	if _, err := n.tryAdd("wiped", map[string]any{"dataDir": agents}); err != nil {
		t.Error(err)
	}
	n.subnet("10.244.1.0/24") // as an agent before writes it
	if _, err := n.tryAdd("former", nil); err != nil {
		t.Error(err)
	}
}
