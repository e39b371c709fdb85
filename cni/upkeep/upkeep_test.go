package upkeep

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	"edgemesh/cni/conf"
	"edgemesh/cni/ipam"
	"edgemesh/cni/nstest"
	"edgemesh/cni/overlap"
	"edgemesh/cni/podlink"
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

func upkeep(t *testing.T, dir, data string, netns ns.NetNS) error {
	if f, r, err := Reconcile(data); f != 0 || r != 0 || err != nil {
		t.Errorf("no store: %d, %d, %v", f, r, err)
	}
	if err := Status(data, dir); !errors.Is(err, conf.ErrNoSubnet) {
		t.Errorf("no subnet: STATUS: %v", err)
	}
	if _, err := Usage(data, dir); !errors.Is(err, conf.ErrNoSubnet) {
		t.Errorf("no subnet: %v", err)
	}
	subnet := []byte(`{"podCIDRs":["10.1.1.0/24"],"clusterCIDRs":["10.1.0.0/16"],"mtu":1500}`)
	if err := os.WriteFile(filepath.Join(dir, conf.SubnetFile), subnet, 0o600); err != nil {
		return err
	}
	if u, err := Usage(data, dir); err != nil || len(u) != 1 || u[0].Size != 253 || u[0].Used != 0 {
		t.Errorf("usage without a store: %+v, %v", u, err)
	}
	if _, err := os.Stat(data); !errors.Is(err, os.ErrNotExist) {
		t.Error("looking made a store")
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
	lives := podlink.Pod{Owner: recs[1].Owner, MTU: 1500, Addrs: []podlink.Addr{
		{Prefix: netip.PrefixFrom(recs[1].IP, 24), Gateway: conf.Gateway(pools.Blocks[0])}}}
	host, err := podlink.Create(lives, br, netns, true, func(netlink.Link) error { return nil })
	if err != nil {
		return err
	}
	if err := podlink.Start(host); err != nil {
		return err
	}
	// Of an earlier boot, so that no ADD can still be under way.
	recs[0].Boot = "earlier"
	if err := os.WriteFile(filepath.Join(data, recs[0].FileName()), recs[0].Encode(), 0o600); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(data, recs[1].FileName())); err != nil {
		return err
	}
	if freed, restored, err := Reconcile(data); freed != 1 || restored != 1 || err != nil {
		t.Errorf("freed %d, restored %d, %v", freed, restored, err)
	}
	u, err := Usage(data, dir)
	if err != nil || len(u) != 1 || u[0].Used != 1 || u[0].Kept != 1 || u[0].Lost != 0 || u[0].Oldest.IsZero() {
		t.Errorf("usage: %+v, %v", u, err)
	}
	if c, err := Overlaps(dir); len(c) != 0 || err != nil {
		t.Errorf("our own bridge counts as an overlap: %v, %v", c, err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "docker0"
	docker := &netlink.Bridge{LinkAttrs: attrs}
	addr, err := netlink.ParseAddr("10.1.9.1/24")
	if err := errors.Join(err, netlink.LinkAdd(docker), netlink.AddrAdd(docker, addr)); err != nil {
		return err
	}
	if err := Status(data, dir); err != nil {
		t.Errorf("a pod runs, and STATUS: %v", err)
	}
	if err := Status(filepath.Join(dir, "none"), dir); !errors.Is(err, overlap.ErrOverlap) {
		t.Errorf("before the first pod, STATUS: %v", err)
	}
	if c, err := Overlaps(dir); len(c) != 1 || err != nil || c[0].Device != "docker0" {
		t.Errorf("overlaps: %v, %v", c, err)
	}
	return nil
}
