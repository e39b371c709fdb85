package upkeep

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	"edgemesh/internal/cni/conf"
	"edgemesh/internal/cni/ipam"
	"edgemesh/internal/cni/nstest"
	"edgemesh/internal/cni/overlap"
	"edgemesh/internal/cni/podlink"
	"edgemesh/internal/membership/mesh"
)

// A node whose pods vanished, as after a power cut, with one that lives and
// has lost its record.
func TestUpkeep(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIP: making network namespaces needs root")
	}
	node, pod := nstest.New(t), nstest.New(t)
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	if err := node.Do(func(ns.NetNS) error { return upkeep(t, dir, data, pod) }); err != nil {
		t.Fatal(err)
	}
}

// config is the plugin's, with data and runtime directory.
func config(t *testing.T, data, dir string, options string) *conf.NetConf {
	t.Helper()
	c, err := conf.ParseNetConf(fmt.Appendf(nil, `{"name":"edgemesh","dataDir":%q,"runtimeDir":%q%s}`, data, dir, options))
	if err == nil {
		err = c.Validate("")
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func upkeep(t *testing.T, dir, data string, netns ns.NetNS) error {
	c := config(t, data, dir, "")
	if f, r, err := Reconcile(c); f != 0 || r != 0 || err != nil {
		t.Errorf("no store: %d, %d, %v", f, r, err)
	}
	if err := Status(c); !errors.Is(err, conf.ErrNoSubnet) {
		t.Errorf("no subnet: STATUS: %v", err)
	}
	if _, err := Usage(c); !errors.Is(err, conf.ErrNoSubnet) {
		t.Errorf("no subnet: %v", err)
	}
	subnet := []byte(`{"podCIDRs":["10.1.1.0/24"],"clusterCIDRs":["10.1.0.0/16"],"mtu":1500}`)
	if err := os.WriteFile(filepath.Join(dir, conf.SubnetFile), subnet, 0o600); err != nil {
		return err
	}
	if u, err := Usage(c); err != nil || len(u) != 1 || u[0].Size != 253 || u[0].Used != 0 {
		t.Errorf("usage without a store: %+v, %v", u, err)
	}
	if u, err := Usage(config(t, data, dir, `,"exclude":["10.1.1.128/25"]`)); err != nil || u[0].Size != 126 {
		t.Errorf("usage with half of the block excluded: %+v, %v", u, err)
	}
	if _, err := os.Stat(data); !errors.Is(err, os.ErrNotExist) {
		t.Error("looking made a store")
	}

	busy, err := ipam.Open(filepath.Join(dir, "busy"), podlink.Host{}, ipam.Policy{})
	if err != nil {
		return err
	}
	if u, err := Usage(config(t, filepath.Join(dir, "busy"), dir, "")); err != nil || len(u) != 1 {
		t.Errorf("usage while a call runs: %+v, %v", u, err)
	}
	if err := busy.Close(); err != nil {
		return err
	}

	pools, err := conf.ParseSubnet(subnet)
	if err != nil {
		return err
	}
	var recs []ipam.Record
	for _, name := range []string{"gone", "lives"} {
		s, err := ipam.Open(data, podlink.Host{}, ipam.Policy{})
		if err != nil {
			return err
		}
		got, err := s.Allocate(ipam.Request{Blocks: pools.Blocks,
			Owner: ipam.Owner{Network: "edgemesh", ContainerID: name, IfName: "eth0", Namespace: "default", Pod: name}})
		if err := errors.Join(err, s.Close()); err != nil {
			return err
		}
		recs = append(recs, got...)
	}
	br, err := podlink.EnsureBridge(conf.DefaultBridge, pools, false)
	if err != nil {
		return err
	}
	lives := podlink.Pod{Owner: recs[1].Owner, MTU: 1500, Store: c.DataDir, Addrs: []podlink.Addr{
		{Prefix: netip.PrefixFrom(recs[1].IP, 24), Gateway: mesh.Gateway(pools.Blocks[0])}}}
	host, _, err := podlink.Create(lives, br, netns, true, func(netlink.Link) error { return nil })
	if err != nil {
		return err
	}
	if err := podlink.Start(host); err != nil {
		return err
	}
	// Of an earlier boot, so that no ADD can still run.
	recs[0].Boot = "earlier"
	if err := os.WriteFile(filepath.Join(data, recs[0].FileName()), recs[0].Encode(), 0o600); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(data, recs[1].FileName())); err != nil {
		return err
	}
	if freed, restored, err := Reconcile(c); freed != 1 || restored != 1 || err != nil {
		t.Errorf("freed %d, restored %d, %v", freed, restored, err)
	}
	u, err := Usage(c)
	if err != nil || len(u) != 1 || u[0].Used != 1 || u[0].Kept != 1 || u[0].Lost != 0 || u[0].Oldest.IsZero() {
		t.Errorf("usage: %+v, %v", u, err)
	}
	if u, err := Usage(config(t, data, dir, `,"exclude":["10.1.1.128/25"]`)); err != nil || u[0].Size != 126 || u[0].Kept != 1 {
		t.Errorf("usage with half of the block excluded: %+v, %v", u, err)
	}
	// The node gets another block: the pod that lives is not in it, the one that is gone does not count.
	if found, err := Strays(c); len(found) != 0 || err != nil {
		t.Errorf("in the node's block: %v, %v", found, err)
	}
	other := bytes.ReplaceAll(subnet, []byte("10.1.1.0"), []byte("10.1.2.0"))
	if err := os.WriteFile(filepath.Join(dir, conf.SubnetFile), other, 0o600); err != nil {
		return err
	}
	if found, err := Strays(c); err != nil || len(found) != 1 || found[0].IP != recs[1].IP || found[0].ContainerID != "lives" {
		t.Errorf("strays %v, %v, want %v", found, err, recs[1])
	}
	if err := os.WriteFile(filepath.Join(dir, conf.SubnetFile), subnet, 0o600); err != nil {
		return err
	}
	if found, err := Overlaps(c); len(found) != 0 || err != nil {
		t.Errorf("our own bridge counts as an overlap: %v, %v", found, err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "docker0"
	docker := &netlink.Bridge{LinkAttrs: attrs}
	addr, err := netlink.ParseAddr("10.1.9.1/24")
	if err := errors.Join(err, netlink.LinkAdd(docker), netlink.AddrAdd(docker, addr)); err != nil {
		return err
	}
	if err := Status(c); err != nil {
		t.Errorf("a pod runs, and STATUS: %v", err)
	}
	if found, err := Overlaps(c); len(found) != 1 || err != nil || found[0].Device != "docker0" {
		t.Errorf("overlaps: %v, %v", found, err)
	}
	return rebooted(t, c)
}

// rebooted is the same node later: what its pods lived beside does not keep them
// from coming back.
func rebooted(t *testing.T, c *conf.NetConf) error {
	br, err := netlink.LinkByName(conf.DefaultBridge)
	if err := errors.Join(err, delPods(br), netlink.LinkDel(br)); err != nil {
		return err
	}
	entries, err := os.ReadDir(c.DataDir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(c.DataDir, e.Name())
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		r, err := ipam.Decode(e.Name(), b)
		if err != nil {
			return err
		}
		r.Boot = "earlier"
		if err := os.WriteFile(path, r.Encode(), 0o600); err != nil {
			return err
		}
	}
	if err := Status(config(t, filepath.Join(c.RuntimeDir, "none"), c.RuntimeDir, "")); !errors.Is(err, overlap.ErrOverlap) {
		t.Errorf("before the first pod, STATUS: %v", err)
	}
	for _, when := range []string{"after a reboot", "after the agent's reconciliation"} {
		if err := Status(c); err != nil {
			t.Errorf("%s: STATUS: %v", when, err)
		}
		if _, _, err := Reconcile(c); err != nil {
			return err
		}
	}
	if u, err := Usage(c); err != nil || u[0].Used != 0 || u[0].Kept != 1 {
		t.Errorf("usage: %+v, %v", u, err)
	}
	// A power cut left names only.
	if entries, err = os.ReadDir(c.DataDir); err != nil {
		return err
	}
	for _, e := range entries {
		if err := os.Truncate(filepath.Join(c.DataDir, e.Name()), 0); err != nil {
			return err
		}
	}
	if err := Status(c); err != nil {
		t.Errorf("with torn records: STATUS: %v", err)
	}
	// These were pods of another block, and a new one is looked at again.
	subnet := []byte(`{"podCIDRs":["10.1.2.0/24"],"clusterCIDRs":["10.1.0.0/16"],"mtu":1500}`)
	if err := os.WriteFile(filepath.Join(c.RuntimeDir, conf.SubnetFile), subnet, 0o600); err != nil {
		return err
	}
	if err := Status(c); !errors.Is(err, overlap.ErrOverlap) {
		t.Errorf("before the first pod of a new block: STATUS: %v", err)
	}
	return nil
}

func delPods(br netlink.Link) error {
	links, err := netlink.LinkList()
	if err != nil {
		return err
	}
	for _, l := range links {
		if l.Attrs().MasterIndex == br.Attrs().Index {
			if err := netlink.LinkDel(l); err != nil {
				return err
			}
		}
	}
	return nil
}

// What the operator says about keeping addresses holds for reconciliation, too.
func TestReconcileKeepsTheOperatorsPolicy(t *testing.T) {
	now := time.Now().UTC()
	for _, c := range []struct {
		options string
		want    []string
	}{
		{"", []string{"api-5d9c7b7f6b-x2x9z", "old-0", "web-0"}},
		{`,"keepOnly":"statefulset"`, []string{"old-0", "web-0"}},
		{`,"keepOnly":"none"`, []string{"old-0"}}, // it was released before
		{`,"keepFor":"1h"`, []string{"api-5d9c7b7f6b-x2x9z", "web-0"}},
	} {
		dir := t.TempDir()
		for n, pod := range []string{"web-0", "api-5d9c7b7f6b-x2x9z", "old-0"} {
			r := ipam.Record{IP: netip.AddrFrom4([4]byte{10, 1, 1, byte(2 + n)}), Boot: "earlier", Allocated: now.Add(-5 * time.Hour),
				Owner: ipam.Owner{Network: "edgemesh", ContainerID: "c", IfName: "eth0", Namespace: "default", Pod: pod}}
			if pod == "old-0" {
				r.Released = now.Add(-2 * time.Hour)
			}
			if err := os.WriteFile(filepath.Join(dir, r.FileName()), r.Encode(), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if _, _, err := Reconcile(config(t, dir, dir, c.options)); err != nil {
			t.Fatal(err)
		}
		var got []string
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			got = append(got, e.Name()[strings.LastIndex(e.Name(), "_")+1:])
		}
		slices.Sort(got)
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: kept %v, want %v", c.options, got, c.want)
		}
	}
}
