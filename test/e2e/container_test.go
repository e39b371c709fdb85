package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"edgemesh/test/fair"
	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

// contained is what runs a node's agent as in the manifests' container, by the node's name of the program: with their capabilities, and the
// host's directories except for the pods' namespaces; /proc/sys is read-only beside what they mount of it; and plain iptables is the
// image's. Arguments: a directory for the root, the real program, the directory of the image's iptables.
const contained = `#!/bin/sh -e
[ "$1" = run ] || exec %[2]s "$@"
exec unshare -m sh -ec '
mount -t tmpfs none %[1]s
for f in /*; do
	if [ -L $f ]; then cp -P $f %[1]s/
	elif [ -d $f ] && [ $f != /host ]; then mkdir %[1]s$f; mount --rbind $f %[1]s$f
	fi
done
mkdir -p %[1]s/host/etc %[1]s/host/proc/sys/net
cp /etc/resolv.conf %[1]s/host/etc/
mount --bind /proc/sys/net %[1]s/host/proc/sys/net
mount --bind /proc/sys %[1]s/proc/sys
mount -o remount,bind,ro %[1]s/proc/sys
mount -t tmpfs none %[1]s/run/netns
exec chroot %[1]s env PATH=%[3]s:$PATH setpriv --bounding-set=-all,+net_admin,+net_raw %[2]s "$@"' sh "$@"
`

// contain has the node's next agent run as in a container whose image has the iptables of nftables.
func contain(t *testing.T, n *lab.Node) {
	t.Helper()
	dir := filepath.Join(n.Dir, "container")
	bin := backend(t, filepath.Join(dir, "image"), "nft")
	ok(t, os.MkdirAll(filepath.Join(dir, "root"), 0o755))
	real := n.AgentPath()
	ok(t, os.WriteFile(filepath.Join(dir, "edgemesh-agent"), fmt.Appendf(nil, contained, filepath.Join(dir, "root"), real, bin), 0o755)) //nolint:gosec // a program
	n.Programs = dir
}

// backend makes a directory in which iptables and ip6tables are those of one backend.
func backend(t *testing.T, dir, name string) string {
	t.Helper()
	multi, err := exec.LookPath("xtables-" + name + "-multi")
	ok(t, err)
	ok(t, os.MkdirAll(dir, 0o755))
	for _, program := range []string{"iptables", "ip6tables"} {
		for _, what := range []string{"", "-save", "-restore"} {
			ok(t, os.Symlink(multi, filepath.Join(dir, program+what)))
		}
	}
	return dir
}

// TestHostPortsInContainer: with the agent as DaemonSet or static pod, hostPorts of both IP versions come back after a reload of the
// firewall, in the backend in which the runtime's plugins have made them, and nowhere else; nothing of a deleted pod's is left.
func TestHostPortsInContainer(t *testing.T) {
	tier.All(t)
	beside(t)
	for _, host := range []string{"nft", "legacy"} {
		if host == "legacy" && !tier.IsLong() { // the kernel does not announce its changes: some seconds
			break
		}
		t.Run(host, func(t *testing.T) {
			l := newLab(t)
			relay(t, l, "relay")
			a := site(t, l, "site-a", lab.EIM)
			n := node(t, a, "edge-1", lab.NodeOptions{})
			n.Config.CNIConfDir, n.Config.CNIBinDir = filepath.Join(n.Dir, "net.d"), filepath.Join(n.Dir, "cnibin")
			n.DataDir = filepath.Join(n.Dir, "cni", "networks", "edgemesh")
			n.Config.CNIDataDir = n.DataDir
			ok(t, os.MkdirAll(filepath.Join(n.Config.CNIBinDir, "real"), 0o755))
			metaPlugins(t, filepath.Join(n.Config.CNIBinDir, "real"))
			// The runtime has the host's iptables, the agent that of its image.
			script := fmt.Sprintf("#!/bin/sh\n[ -d /host/etc ] || PATH=%s:$PATH\nexec %s/real/portmap\n", backend(t, filepath.Join(n.Dir, "host"), host), n.Config.CNIBinDir)
			ok(t, os.WriteFile(filepath.Join(n.Config.CNIBinDir, "portmap"), []byte(script), 0o755)) //nolint:gosec // a program
			ok(t, n.Script("iptables-"+host+" -w -t mangle -N KUBE-KUBELET-CANARY"))                 // kubelet's hint
			contain(t, n)
			startRelays(t, l)
			ok(t, n.Start())
			conflist := filepath.Join(n.Config.CNIConfDir, "10-edgemesh.conflist")
			ok(t, lab.Until(within(t, 20*time.Second), 50*time.Millisecond, func() error { _, err := os.Stat(conflist); return err }))
			r := newCaller(t, n, map[string]any{
				"portMappings": []map[string]any{{"hostPort": 8080, "containerPort": lab.ServePort, "protocol": "tcp"}},
			})
			web, err := n.NewNS("web-0")
			ok(t, err)
			_, err = r.add(t.Context(), web, "web-0")
			ok(t, err)
			_, err = web.Serve(within(t, 5*time.Second), "web-0")
			ok(t, err)
			visitor, _, err := a.AddHost("visitor")
			ok(t, err)
			answers := func() error {
				return visitor.Tool(t.Context(), nil, "get", "--timeout", "1s", fmt.Sprintf("http://%s:8080/", n.Addr))
			}
			ok(t, answers())
			// has says in which backends there are rules of the pod, by IP version.
			has := func() string {
				var out []string
				for _, b := range []string{"nft", "legacy"} {
					for _, program := range []string{"iptables", "ip6tables"} {
						rules, err := n.Run(t.Context(), program+"-"+b+"-save")
						ok(t, err)
						if strings.Contains(rules, "-A CNI-DN-") {
							out = append(out, program+"-"+b)
						}
					}
				}
				return strings.Join(out, " ")
			}
			want := fmt.Sprintf("iptables-%[1]s ip6tables-%[1]s", host)
			where := func(when string) {
				t.Helper()
				fair.Eventually(t, 15*time.Second, when, func() error {
					if is := has(); is != want {
						return fmt.Errorf("rules of the pod are in %q, want %q", is, want)
					}
					return nil
				})
			}
			where("as made by the runtime")
			ok(t, n.Agent.Stop())
			ok(t, n.Start())
			ready(t, n)
			where("after the agent's start")

			flush := "nft flush ruleset"
			if host == "legacy" {
				flush = "iptables-legacy -w -t nat -F\nip6tables-legacy -w -t nat -F\niptables-legacy -w -F"
			}
			ok(t, n.Script(flush))
			start := time.Now()
			fair.Eventually(t, 20*time.Second, "the hostPort answers", answers)
			t.Logf("%s: back after %d ms", host, time.Since(start).Milliseconds())
			where("after a reload of the firewall")
			status, _, err := n.AgentCommand(t.Context(), "status", "--json", "--runtime-dir", n.Config.RuntimeDir)
			if err != nil && !errors.As(err, new(*lab.ExitError)) {
				t.Fatal(err)
			}
			if strings.Contains(status, "host-ports") {
				t.Errorf("status: %s", status)
			}
			want = ""
			ok(t, r.del(t.Context(), web, "web-0"))
			where("after the pod's end")
			ok(t, n.Agent.Stop())
			_, stderr, err := n.AgentCommand(within(t, 20*time.Second), "cleanup", "--config", n.ConfigFile())
			if err != nil {
				t.Fatalf("cleanup: %v: %s", err, stderr)
			}
			if left, err := os.ReadDir(n.Config.RuntimeDir); len(left) > 0 || err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Errorf("cleanup has left in %s: %v %v", n.Config.RuntimeDir, left, err)
			}
		})
	}
}

// TestDirectoryReplaced: another program replaces the directory of CNI configurations that the agent's container was given. The agent ends, says so,
// and its next container installs what is needed in the new one.
func TestDirectoryReplaced(t *testing.T) {
	beside(t)
	l := newLab(t)
	relay(t, l, "relay")
	n := node(t, site(t, l, "site-a", lab.EIM), "edge-1", lab.NodeOptions{})
	dir := filepath.Join(n.Dir, "cni", "net.d")
	n.Config.CNIConfDir, n.Config.CNIBinDir = dir, filepath.Join(n.Dir, "cnibin")
	ok(t, os.MkdirAll(dir, 0o755))
	startRelays(t, l)
	ok(t, n.WriteConfig())
	start := func() {
		t.Helper()
		startBy(t, n, []string{"unshare", "-m", "sh", "-ec", `
mount -t tmpfs none /mnt
mkdir /mnt/net.d
mount --bind "$0" /mnt/net.d
mount -t tmpfs none "${0%/*}" # the container's own, so that the directory is not itself a mount's place
mkdir "$0"
mount --bind /mnt/net.d "$0"
exec "$@"`, dir})
		ready(t, n)
		fair.Eventually(t, 20*time.Second, "the conflist is there", func() error {
			_, err := os.Stat(filepath.Join(dir, "10-edgemesh.conflist"))
			return err
		})
	}
	start()
	for what, replace := range map[string]string{
		"renamed": "mv %[1]s %[1]s.old; mkdir %[1]s",
		"deleted": "rm -r %[1]s; mkdir %[1]s",
	} {
		before := n.Agent
		ok(t, n.Script(fmt.Sprintf(replace, dir), "ip link add nudge type bridge", "ip link del nudge")) // the kernel's events wake the comparison
		fair.Eventually(t, 40*time.Second, what+": the agent has ended", fair.True(func() bool { return !before.Running() }))
		contains(t, before.Tail(20), "the host's directory was replaced or deleted", dir)
		start()
	}
	ok(t, n.NS.Ping(t.Context(), pod(t, n, "one").IP4().String(), 2*time.Second))
}
