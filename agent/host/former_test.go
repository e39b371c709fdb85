package host

import (
	"context"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
)

// former makes the devices of an agent that used earlier names, with its routes.
func former(t *testing.T) {
	t.Helper()
	run(t, strings.Join([]string{
		"ip tuntap add dev edgemesh0 mode tun",
		"ip addr add 10.244.1.1/32 dev edgemesh0",
		"ip -6 addr add fd00:1::1/128 dev edgemesh0 nodad",
		"ip link set edgemesh0 up",
		"ip route replace 10.244.0.0/16 dev edgemesh0 proto 210 src 10.244.1.1 metric 1024 table 5210",
		"ip link add edgemesh.vx type vxlan id 5210 dstport 5210 nolearning",
		"ip link set edgemesh.vx up",
	}, "\n"))
	vx, err := netlink.LinkByName("edgemesh.vx")
	if err == nil {
		err = netlink.LinkSetAlias(vx, "edgemesh over IPv4, df")
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestFormerNames: the devices of an earlier agent go, and their routes move to ours.
func TestFormerNames(t *testing.T) {
	t.Parallel()
	enter(t)
	former(t)
	makeTUN(t)
	h := newHost(t)
	if _, can, err := h.set(context.Background(), dual()); err != nil || can.NoVXLAN != "" {
		t.Fatal(err, can.NoVXLAN)
	}
	if links := run(t, "ip -br link"); strings.Contains(links, "edgemesh0") || strings.Contains(links, "edgemesh.vx") {
		t.Errorf("left:\n%s", links)
	}
	wantContains(t, "routes", run(t, "ip route show table 5210"), "10.244.0.0/16 dev edgemesh-tun ")
	if done, _, err := h.set(context.Background(), dual()); err != nil || len(done) > 0 {
		t.Errorf("done again: %v, %v", done, err)
	}

	run(t, "ip link del edgemesh-vx") // an older agent ran meanwhile
	former(t)
	if err := h.Cleanup(context.Background()); err != nil {
		t.Fatal(err)
	}
	if links := run(t, "ip -br link"); strings.Contains(links, "edgemesh") {
		t.Errorf("left by cleanup:\n%s", links)
	}
}

// TestOthersEdgemesh0: KubeEdge's EdgeMesh has a device of our former name. It stays as it is, whatever we do.
func TestOthersEdgemesh0(t *testing.T) {
	t.Parallel()
	for name, add := range map[string]string{
		"a dummy, here a bridge": "ip link add edgemesh0 type bridge",
		"a TUN of a VPN":         "ip tuntap add dev edgemesh0 mode tun",
	} {
		t.Run(name, func(t *testing.T) {
			enter(t)
			run(t, add+"\nip addr add 169.254.96.16/32 dev edgemesh0\nip link set edgemesh0 up")
			makeTUN(t)
			before := run(t, "ip -br -4 addr show dev edgemesh0")
			h := newHost(t)
			if _, _, err := h.set(context.Background(), dual()); err != nil {
				t.Fatal(err)
			}
			if after := run(t, "ip -br -4 addr show dev edgemesh0"); after != before {
				t.Errorf("was\n%s, is\n%s", before, after)
			}
			if name == "a TUN of a VPN" {
				return // cleanup cannot tell it from ours: no agent says which ranges are the cluster's
			}
			if err := h.Cleanup(context.Background()); err != nil {
				t.Fatal(err)
			}
			if after := run(t, "ip -br -4 addr show dev edgemesh0"); after != before {
				t.Errorf("cleanup: was\n%s, is\n%s", before, after)
			}
		})
	}
}
