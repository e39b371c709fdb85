package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"edgemesh/agent/cniconf"
	"edgemesh/agent/control"
	"edgemesh/agent/findings"
	"edgemesh/internal/cni/conf"
	"edgemesh/internal/cni/ipam"
	"edgemesh/internal/cni/podlink"
	"edgemesh/internal/membership/mesh"
)

func netConf(t *testing.T, dataDir, runtimeDir string) *conf.NetConf {
	t.Helper()
	c, err := cniconf.New(cniconf.Config{DataDir: dataDir, RuntimeDir: runtimeDir}).NetConf()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestReconcileTellsOnlyWhatItDid(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	dir := t.TempDir()
	if reported := reconcileOnce(netConf(t, filepath.Join(dir, "none"), dir), "", log); reported != "" || out.Len() > 0 {
		t.Errorf("no store: %q, log %q", reported, out.String())
	}
	// A pod of an earlier boot.
	gone := ipam.Record{IP: netip.MustParseAddr("10.1.1.5"), Boot: "earlier", Allocated: time.Now(), Owner: ipam.Owner{
		Network: "edgemesh", ContainerID: "c", IfName: "eth0", Namespace: "default", Pod: "web-0"}}
	if err := os.WriteFile(filepath.Join(dir, gone.FileName()), gone.Encode(), 0o600); err != nil {
		t.Fatal(err)
	}
	if reported := reconcileOnce(netConf(t, dir, dir), "", log); reported != "" || !strings.Contains(out.String(), "freed=1 restored=0") {
		t.Errorf("reported %q, log %q", reported, out.String())
	}
	out.Reset()
	if reported := reconcileOnce(netConf(t, dir, dir), "", log); reported != "" || out.Len() > 0 {
		t.Errorf("nothing left to do: reported %q, log %q", reported, out.String())
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	reported := reconcileOnce(netConf(t, file, dir), "", log)
	if reported == "" || strings.Count(out.String(), "level=WARN") != 1 {
		t.Errorf("store is a file: reported %q, log %q", reported, out.String())
	}
	if reconcileOnce(netConf(t, file, dir), reported, log) != reported || strings.Count(out.String(), "level=WARN") != 1 {
		t.Errorf("the same error again: log %q", out.String())
	}
}

func TestPoolStatus(t *testing.T) {
	block, at := netip.MustParsePrefix("10.1.1.0/24"), time.Unix(1, 0)
	got := poolStatus([]ipam.Usage{{Blocks: []netip.Prefix{block}, Size: 253, Used: 2, Kept: 1, Oldest: at}, {Size: 1 << 62}})
	want := []control.Pool{{Blocks: []string{"10.1.1.0/24"}, Size: 253, Used: 2, Kept: 1, Oldest: &at}, {Blocks: []string{}, Size: 1 << 62}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if poolStatus(nil) == nil {
		t.Error("status would print null")
	}
}

func TestServing(t *testing.T) {
	dir := t.TempDir()
	of := func(p mesh.Plan) *kernel {
		force := &inForce{}
		force.setPlan(plan{Plan: p})
		return &kernel{pods: netConf(t, filepath.Join(dir, "data"), dir), log: slog.New(slog.DiscardHandler), force: force}
	}
	own, keep := of(mesh.Plan{}), of(mesh.Plan{Host: mesh.Host{Keep: true}})
	broken := errors.New("no bridge")
	if err := own.serving(broken); !errors.Is(err, broken) {
		t.Errorf("the host's error: %v", err)
	}
	if err := own.serving(nil); !errors.Is(err, conf.ErrNoSubnet) || !strings.Contains(err.Error(), "new pods get no network") {
		t.Errorf("STATUS would fail: %v", err)
	}
	if err := keep.serving(nil); err != nil {
		t.Errorf("our plugin has no pods: %v", err)
	}
	// A range that nothing on the machine that tests has.
	subnet := []byte(`{"podCIDRs":["198.18.77.0/24"],"clusterCIDRs":["198.18.0.0/16"],"mtu":1500}`)
	if err := os.WriteFile(filepath.Join(dir, conf.SubnetFile), subnet, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := own.serving(nil); err != nil {
		t.Errorf("an ADD would succeed: %v", err)
	}
	own.setWaits(fmt.Errorf("%w: no portmap", cniconf.ErrWaits))
	if err := own.serving(nil); !errors.Is(err, cniconf.ErrWaits) {
		t.Errorf("the runtime has no configuration: %v", err)
	}
	own.setWaits(fmt.Errorf("%w: no bandwidth", cniconf.ErrFormer))
	if err := own.serving(nil); err != nil {
		t.Errorf("the former configuration makes pods: %v", err)
	}
}

// Pods outside of the node's blocks are named, with what to do.
func TestStrays(t *testing.T) {
	dir := t.TempDir()
	pods := netConf(t, filepath.Join(dir, "data"), dir)
	if f := strays(pods, mesh.Host{}); f.Severity != findings.OK {
		t.Errorf("no subnet: %+v", f)
	}
	if err := os.WriteFile(filepath.Join(dir, conf.SubnetFile), []byte(`{"podCIDRs":["198.18.77.0/24"],"clusterCIDRs":["198.18.0.0/16"],"mtu":1500}`), 0o600); err != nil {
		t.Fatal(err)
	}
	store, err := ipam.Open(pods.DataDir, podlink.Host{}, ipam.Policy{})
	if err != nil {
		t.Fatal(err)
	}
	for i, block := range []string{"198.18.77.0/24", "198.18.78.0/24"} {
		_, err := store.Allocate(ipam.Request{Blocks: []netip.Prefix{netip.MustParsePrefix(block)}, Owner: ipam.Owner{
			Network: "edgemesh", ContainerID: fmt.Sprint("c", i), IfName: "eth0", Namespace: "default", Pod: fmt.Sprint("web-", i)}})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	f := strays(pods, mesh.Host{})
	if f.Severity != findings.Broken || !strings.HasPrefix(f.Text, "default/web-1 (198.18.78.2): ") || !strings.Contains(f.Remedy, "delete these pods") {
		t.Errorf("%+v", f)
	}
	if all := aside(pods, mesh.Host{}); len(all) > 0 {
		t.Errorf("pods with our eth0: %+v", all)
	}
	unread := netConf(t, filepath.Join(dir, conf.SubnetFile), dir) // a file in the directory's place
	if f := strays(unread, mesh.Host{}); f.Severity != findings.Warning || !strings.Contains(f.Text, "cannot be read") {
		t.Errorf("records that cannot be read: %+v", f)
	}
	if f := strays(pods, mesh.Host{Keep: true}); f.Severity != findings.OK {
		t.Errorf("another plugin has the pods: %+v", f)
	}
}

// Pods in which this network is a further one, and that a plugin of before made, are named; new ones are not, nor those with our eth0.
func TestAside(t *testing.T) {
	dir := t.TempDir()
	pods := netConf(t, filepath.Join(dir, "data"), dir)
	store, err := ipam.Open(pods.DataDir, podlink.Host{}, ipam.Policy{})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []ipam.Owner{{ContainerID: "c0", IfName: "net1", Pod: "old"}, {ContainerID: "c1", IfName: "net1", Pod: "new"},
		{ContainerID: "c2", IfName: "eth0", Pod: "both"}, {ContainerID: "c2", IfName: "net1", Pod: "both"}} {
		o.Network, o.Namespace = "edgemesh", "default"
		recs, err := store.Allocate(ipam.Request{Blocks: []netip.Prefix{netip.MustParsePrefix("198.18.77.0/24")}, Owner: o})
		if err != nil {
			t.Fatal(err)
		}
		if o.Pod == "new" {
			continue
		}
		files, err := filepath.Glob(filepath.Join(pods.DataDir, recs[0].IP.String()+"_*"))
		if err != nil || len(files) != 1 {
			t.Fatal(files, err)
		}
		b, err := os.ReadFile(files[0])
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(files[0], bytes.Replace(b, []byte(",\n  \"ranged\": true"), nil, 1), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	all := aside(pods, mesh.Host{})
	if len(all) != 1 || all[0].Severity != findings.Note || !strings.HasPrefix(all[0].Text, "default/old (198.18.77.2): another network has") {
		t.Errorf("%+v", all)
	}
	if all := aside(pods, mesh.Host{Keep: true}); len(all) > 0 {
		t.Errorf("another plugin has the pods: %+v", all)
	}
}
