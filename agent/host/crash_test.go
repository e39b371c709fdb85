package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"edgemesh/agent/host/plan"
	"edgemesh/agent/host/sysctl"
)

// TestEveryStepIsSafe looks at the host after each single change of Set.
func TestEveryStepIsSafe(t *testing.T) {
	t.Parallel()
	enter(t)
	run(t, uplinkScript+"\nip route add default via 192.168.1.1\nip -6 route add default dev up0")
	makeTUN(t)
	h := newHost(t)
	if n := setSome(t, h, 1000, wantNoLeak); n < 20 {
		t.Errorf("Set made %d changes on an untouched host", n)
	}
	wantUnchanged(t, h, dual())
}

// TestCrashBetweenSteps stops Set after some of its changes; another agent's
// Set puts the rest in place.
func TestCrashBetweenSteps(t *testing.T) {
	t.Parallel()
	enter(t)
	makeTUN(t)
	all := setSome(t, newHost(t), 1000, func(*testing.T) {})
	for last := 0; last < all; last += 5 {
		t.Run(fmt.Sprint(last), func(t *testing.T) {
			t.Parallel()
			enter(t)
			makeTUN(t)
			dir := t.TempDir()
			log := slog.New(slog.NewTextHandler(testLog{t}, nil))
			if made := setSome(t, New(Config{StateDir: dir, Log: log}), last, func(*testing.T) {}); made != last {
				t.Errorf("Set made %d changes", made)
			}
			h := New(Config{StateDir: dir, Log: log})
			mustSet(t, h, dual())
			wantUnchanged(t, h, dual())
		})
	}
}

// setSome is Set that stops after at most so many changes and calls after
// each; it returns how many there were.
func setSome(t *testing.T, h *Host, most int, each func(*testing.T)) int {
	t.Helper()
	errCrash := errors.New("crash")
	n := 0
	err := h.walk(context.Background(), dual(), func(_ part, changes []plan.Change) error {
		for _, c := range changes {
			if n == most {
				return errCrash
			}
			if err := c.Do(); err != nil {
				return err
			}
			n++
			each(t)
		}
		return nil
	})
	if err != nil && !errors.Is(err, errCrash) {
		t.Fatal(err)
	}
	return n
}

// wantNoLeak checks what has to hold at any moment of Set.
func wantNoLeak(t *testing.T) {
	t.Helper()
	for _, v := range []struct{ ip, save, forwarding, block, far string }{
		{"ip", "iptables-save", "net/ipv4/conf/" + BridgeName + "/forwarding", "10.244.0.0/16", "10.244.9.9"},
		{"ip -6", "ip6tables-save", "net/ipv6/conf/all/forwarding", "fd00::/16", "fd00:9::9"},
	} {
		if strings.Contains(run(t, v.ip+" rule"), "lookup 5210") {
			get := exec.Command("ip", "route", "get", v.far)
			if to, _ := get.Output(); strings.Contains(string(to), "up0") { // it fails in the blackhole
				t.Errorf("a packet for the cluster's range leaves by the uplink: %s", to)
			}
		}
		if on, _ := sysctl.Read(v.forwarding); on != "1" {
			continue
		}
		if _, err := netlink.LinkByName(BridgeName); err != nil {
			continue
		}
		rules := run(t, v.save)
		if guard := run(t, "nft list ruleset inet"); !strings.Contains(guard, "goto pods") {
			wantContains(t, "a firewall of a host that forwards", rules, "-A PREROUTING -j EDGEMESH-SOURCE", "-A EDGEMESH-SOURCE -i edgemesh-br -j DROP")
		}
		wantContains(t, "a firewall of a host that forwards", rules,
			"-A FORWARD ! -i edgemesh-br -j EDGEMESH-FORWARD", "-A EDGEMESH-FORWARD -d "+v.block+" -j DROP")
	}
}
