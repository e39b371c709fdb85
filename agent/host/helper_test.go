package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"edgemesh/agent/host/iptables"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/nstest"
	"edgemesh/test/fair"
)

func outside(t *testing.T) bool                { return nstest.Outside(t) }
func enter(t *testing.T) nstest.Namespace      { return nstest.Enter(t) }
func run(t *testing.T, commands string) string { return nstest.Run(t, commands) }

func newHost(t *testing.T) *Host { return newHostFinding(t, nil) }

// newHostFinding is newHost on a host whose programs find finds.
func newHostFinding(t *testing.T, find iptables.Find) *Host {
	return New(Config{StateDir: t.TempDir(), Log: slog.New(slog.NewTextHandler(testLog{t}, nil)), Find: find})
}

type testLog struct{ t *testing.T }

func (l testLog) Write(b []byte) (int, error) {
	l.t.Log(strings.TrimSuffix(string(b), "\n"))
	return len(b), nil
}

func planOf(cidrs ...string) mesh.Host {
	w := mesh.Host{MTU: 1500}
	for i := 0; i < len(cidrs); i += 2 {
		w.Blocks = append(w.Blocks, netip.MustParsePrefix(cidrs[i]))
		w.ClusterCIDRs = append(w.ClusterCIDRs, netip.MustParsePrefix(cidrs[i+1]))
	}
	return w
}

func dual() mesh.Host {
	w := planOf("10.244.1.0/24", "10.244.0.0/16", "fd00:1::/64", "fd00::/16")
	w.LAN = mesh.LAN{Native: true, VXLAN: true, ProbePort: 5211, VXLANPort: mesh.VXLANPort, MAC: mesh.VTEPAddr("self"), Bits: [2][]int{{24, 28}, {64}}}
	return w
}

// makeTUN makes the persistent TUN as the agent would have.
func makeTUN(t *testing.T) {
	t.Helper()
	run(t, "ip tuntap add dev "+TUNName+" mode tun\nip link set "+TUNName+" up")
}

func mustSet(t *testing.T, h *Host, w mesh.Host) []string {
	t.Helper()
	if outside(t) {
		t.Fatal("Set would run in the host's own network namespace")
	}
	done, _, err := h.set(context.Background(), w)
	if err != nil {
		t.Fatal(err)
	}
	return done
}

func wantUnchanged(t *testing.T, h *Host, w mesh.Host) {
	t.Helper()
	if done := mustSet(t, h, w); len(done) > 0 {
		t.Fatalf("a second Set changed:\n%s", strings.Join(done, "\n"))
	}
}

func wantContains(t *testing.T, where, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("%s lacks %q:\n%s", where, p, text)
		}
	}
}

// localRoutes waits until each IPv6 address of a link that carries packets has its
// local route: the kernel makes it in the background.
func localRoutes(t *testing.T) {
	t.Helper()
	fair.Eventually(t, deadline, "each IPv6 address has its local route", func() error {
		routes := run(t, "ip -6 route show table local")
		links, err := netlink.LinkList()
		if err != nil {
			return err
		}
		for _, l := range links {
			if l.Attrs().RawFlags&unix.IFF_LOWER_UP == 0 {
				continue
			}
			addrs, err := netlink.AddrList(l, netlink.FAMILY_V6)
			if err != nil {
				return err
			}
			for _, a := range addrs {
				if a.Flags&unix.IFA_F_DADFAILED == 0 && !strings.Contains(routes, "local "+a.IP.String()+" dev "+l.Attrs().Name+" ") {
					return fmt.Errorf("%s of %s has none:\n%s", a.IP, l.Attrs().Name, routes)
				}
			}
		}
		return nil
	})
}

// found is everything on a host that Set may touch, as text.
func found(t *testing.T) string {
	t.Helper()
	localRoutes(t)
	var s strings.Builder
	s.WriteString(run(t, "ip rule\nip -6 rule\nip route show table all\nip -6 route show table all\nip -br link\nip -br addr"))
	for _, save := range []string{"iptables-nft-save", "ip6tables-nft-save", "iptables-legacy-save", "ip6tables-legacy-save"} {
		table := ""
		for line := range strings.Lines(run(t, save)) {
			switch {
			case strings.HasPrefix(line, "*"):
				table = strings.TrimSpace(line)
			case strings.HasPrefix(line, "-A"), strings.HasPrefix(line, ":") && !strings.Contains(line, " ACCEPT "):
				// Tables that are there, but empty, are as good as none. Counters count on.
				rule, _, _ := strings.Cut(strings.TrimSpace(line), " [")
				fmt.Fprintln(&s, save, table, rule)
			}
		}
	}
	// sysctl -a would read all others, too, and take longer than everything else here.
	for _, pattern := range []string{"ipv4/ip_forward", "ipv[46]/conf/*/*"} {
		files, err := filepath.Glob("/proc/sys/net/" + pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			// What cannot be read, as a stable_secret that was never set, is nothing that Set touches; an interface may go meanwhile.
			if b, err := os.ReadFile(f); err == nil {
				fmt.Fprintln(&s, f, strings.TrimSpace(string(b)))
			}
		}
	}
	lines := strings.Split(s.String(), "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// foundAtRest is found, once the kernel has given the links their carrier and their
// link-local addresses, which it does in the background.
func foundAtRest(t *testing.T, links ...string) string {
	t.Helper()
	now := ""
	fair.Eventually(t, deadline, "the links have carrier and addresses", func() error {
		last := now
		time.Sleep(50 * time.Millisecond) // sleep: nothing changes meanwhile
		now = found(t)
		for _, l := range links {
			if !strings.Contains(now, "multicast ff00::/8 dev "+l) || !strings.Contains(now, "fe80::/64 dev "+l) {
				return fmt.Errorf("%s is not ready:\n%s", l, now)
			}
		}
		if now != last {
			return fmt.Errorf("something still changes:\n%s", difference(last, now))
		}
		return nil
	})
	return now
}

// wantFound waits until found is as wanted: the kernel does some of it in the background.
func wantFound(t *testing.T, what, want string) {
	t.Helper()
	fair.Eventually(t, deadline, what, func() error {
		if now := found(t); now != want {
			return errors.New(difference(want, now))
		}
		return nil
	})
}

// difference lists the lines only one of two texts has.
func difference(a, b string) string {
	var out strings.Builder
	as, bs := strings.Split(a, "\n"), strings.Split(b, "\n")
	for _, l := range as {
		if !slices.Contains(bs, l) {
			fmt.Fprintln(&out, "-", l)
		}
	}
	for _, l := range bs {
		if !slices.Contains(as, l) {
			fmt.Fprintln(&out, "+", l)
		}
	}
	return out.String()
}

// backendsOf lists the backends that have chains of ours, of iptables or ip6tables.
func backendsOf(t *testing.T, program string) (out []string) {
	t.Helper()
	program = strings.TrimSuffix(strings.TrimSuffix(program, "-nft"), "-legacy")
	for _, backend := range []string{"nft", "legacy"} {
		if strings.Contains(run(t, program+"-"+backend+"-save"), iptables.Prefix) {
			out = append(out, backend)
		}
	}
	return out
}
