// Package debian runs docs/tutorial.md on fresh Debian systems, with the packages that a release has.
//
// The systems have no Go and no compiler. They are made by mmdebstrap from Debian's mirror, once; each host has the
// root file system below an overlay, and namespaces of its own, in a lab with a NAT per site. They have no systemd:
// a stand-in runs the units' ExecStartPre and ExecStart.
package debian

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

const (
	root = "../.."
	// packages of Debian beside its minimal system; none of them is a compiler.
	packages = "iptables,iproute2,curl,busybox,procps,iputils-ping"
	// most is how long the tutorial's commands may take.
	most = 2 * time.Minute
)

func TestTutorial(t *testing.T) {
	tier.Long(t)
	base := debian(t)
	debs := t.TempDir()
	version := chartVersion(t)
	must(t, root, "env", "DRAFT=1", "VERSION=v"+version, "ARCHES=amd64", "WORKSTATIONS=", "IMAGES=no", "OUT="+debs, "build/release/release.sh")

	l, err := lab.New(lab.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	relay, err := l.AddCloudNode("relay", lab.NodeOptions{NoAgent: true})
	if err != nil {
		t.Fatal(err)
	}
	h := hosts{t, l, base, filepath.Join(debs, "bin")}
	h.start(relay)
	for _, name := range []string{"shop-1", "shop-2"} {
		site, err := l.AddSite("site-"+name, lab.EIM)
		if err != nil {
			t.Fatal(err)
		}
		n, err := site.AddNode(name, lab.NodeOptions{NoAgent: true})
		if err != nil {
			t.Fatal(err)
		}
		h.start(n)
	}
	h.tools()

	page, err := os.ReadFile(filepath.Join(root, "docs/tutorial.md"))
	if err != nil {
		t.Fatal(err)
	}
	made, upgraded, found := strings.Cut(string(page), "\n## 5.")
	if !found {
		t.Fatal("the tutorial has no section 5")
	}
	script := commands(made)
	for old, new := range map[string]string{"version=0.2.0": "version=" + version, "203.0.113.5": relay.Addr.String()} {
		if !strings.Contains(script, old) {
			t.Errorf("the tutorial does not say %q", old)
		}
		script = strings.ReplaceAll(script, old, new)
	}
	before, err := h.ssh("shop-1", "command -v go gcc cc; true")
	if err != nil || before != "" {
		t.Errorf("a compiler is there: %s (%v)", before, err)
	}
	began := time.Now()
	out, err := h.bash(debs, script+"echo web=$web\n")
	took := time.Since(began)
	t.Logf("%s\n(%s)", out, took.Round(time.Second))
	if err != nil {
		t.Fatalf("%v\n%s", err, h.logs())
	}
	h.calm()
	h.pods(debs) // on a node of the tutorial, before that one is cleaned
	began = time.Now()
	more, err := h.bash(debs, "version="+version+"\n"+values(out)+commands(upgraded))
	took += time.Since(began)
	out += more
	t.Logf("%s\n(%s)", more, took.Round(time.Second))
	if err != nil {
		t.Fatalf("%v\n%s", err, h.logs())
	}
	if n := strings.Count(out, "hello from shop-2"); n < 2 {
		t.Errorf("the page was fetched %d times, want before and after the upgrade", n)
	}
	if took > most {
		t.Errorf("it took %s, more than %s", took, most)
	}
	h.check()
	h.removal()
	h.downgrade()
}

// downgrade has the package's agent, which has a version, find the state of a much newer one: refused, with what to do, and
// nothing is changed.
func (h hosts) downgrade() {
	h.t.Helper()
	const left = "cd /var/lib/edgemesh; cat identity.key version | sha256sum; ls; ls /etc/systemd/system /usr/local/bin; ip -o link"
	if _, err := h.ssh("shop-1", "systemctl disable edgemesh-agent; echo v9.9.0 >/var/lib/edgemesh/version"); err != nil {
		h.t.Fatal(err)
	}
	before, err := h.ssh("shop-1", left)
	if err != nil {
		h.t.Fatal(err)
	}
	for _, command := range []string{"edgemesh-agent run", "edgemesh-agent install --membership /etc/edgemesh/cluster.yaml"} {
		out, err := h.ssh("shop-1", command+" 2>&1; echo exit code $?")
		if err != nil || !strings.Contains(out, "install v9.8 or later first") || strings.HasSuffix(out, "exit code 0") {
			h.t.Errorf("%s over the state of v9.9.0: %v: %s", command, err, out)
		}
		h.t.Logf("%s:\n%s", command, out)
	}
	if after, err := h.ssh("shop-1", left); err != nil || after != before {
		h.t.Errorf("what is refused changed the host (%v):\n%s\nwas\n%s", err, after, before)
	}
}

// pods makes a pod without a runtime, as the page does, on shop-1.
func (h hosts) pods(dir string) {
	h.t.Helper()
	page, err := os.ReadFile(filepath.Join(root, "docs/pods.md"))
	if err != nil {
		h.t.Fatal(err)
	}
	_, after, found := strings.Cut(string(page), "\n## Nothing but `ip netns`\n")
	text, _, _ := strings.Cut(after, "\n## ")
	if !found || os.WriteFile(filepath.Join(dir, "pods.sh"), []byte(commands(text)), 0o644) != nil {
		h.t.Fatal("docs/pods.md does not say how a pod is made")
	}
	out, err := h.bash(dir, "scp pods.sh root@shop-1:/root/\nssh root@shop-1 bash pods.sh\n")
	h.t.Log(out)
	if err != nil || !strings.Contains(out, "1 received") {
		h.t.Errorf("docs/pods.md: %v", err)
	}
}

// values are the shell's variables that the second half of the tutorial takes from the first.
func values(out string) string {
	web := regexp.MustCompile(`(?m)^web=(\S+)$`).FindStringSubmatch(out)
	if web == nil {
		return ""
	}
	return "web=" + web[1] + "\n"
}

// check looks at what upgrade and purge left.
func (h hosts) check() {
	h.t.Helper()
	for _, c := range []struct{ host, command, want string }{
		{"shop-1", "edgemesh-agent --version", "v" + chartVersion(h.t)},
		{"shop-1", "ls /var/lib/edgemesh/identity.key", "/var/lib/edgemesh/identity.key"},
		{"shop-2", "ls -A /var/lib/edgemesh /run/edgemesh /var/lib/cni/networks/edgemesh 2>/dev/null; true", ""},
		{"shop-2", "ip -o link show edgemesh-br 2>/dev/null; ip -o link show edgemesh-tun 2>/dev/null; ls /etc/cni/net.d /opt/cni/bin", "/etc/cni/net.d:\n\n/opt/cni/bin:"},
		{"shop-2", "ls /etc/edgemesh", "cluster.yaml"},
		{"shop-2", "iptables-save | grep -c EDGEMESH; true", "0"},
	} {
		if out, err := h.ssh(c.host, c.command); err != nil || strings.TrimSpace(out) != c.want {
			h.t.Errorf("%s: %s: %q (%v), want %q", c.host, c.command, out, err, c.want)
		}
	}
}

// commands are the blocks of a page, in order; each command is shown, and the first that fails ends the script.
func commands(page string) string {
	var out strings.Builder
	out.WriteString("set -euo pipefail\n")
	for _, m := range regexp.MustCompile("(?ms)^```\n(.*?)^```\n").FindAllStringSubmatch(page, -1) {
		out.WriteString(m[1])
	}
	return out.String()
}

// debian is a root file system, made once in the user's cache.
func debian(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("mmdebstrap"); err != nil {
		t.Skip("NOT TESTED: no mmdebstrap (make e2e-debian installs it)")
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cache, "edgemesh", "debian-bookworm-"+strings.ReplaceAll(packages, ",", "-"))
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), "debian-")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	must(t, ".", "mmdebstrap", "--quiet", "--variant=apt", "--include="+packages, "bookworm", filepath.Join(tmp, "root"))
	if err := os.Rename(filepath.Join(tmp, "root"), dir); err != nil && !errors.Is(err, os.ErrExist) {
		t.Fatal(err)
	}
	return dir
}

func must(t *testing.T, dir string, args ...string) {
	t.Helper()
	c := exec.CommandContext(t.Context(), args[0], args[1:]...)
	c.Dir = dir
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func chartVersion(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "manifests/edgemesh/Chart.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return regexp.MustCompile(`(?m)^version: (\S+)$`).FindStringSubmatch(string(text))[1]
}

// hosts are the Debian systems of a lab.
type hosts struct {
	t    *testing.T
	lab  *lab.Lab
	base string // their root file system
	bin  string // directory for ssh and scp
}

// start boots a system in the node's network namespace.
func (h hosts) start(n *lab.Node) {
	h.t.Helper()
	dir := filepath.Join(n.Dir, "debian")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		h.t.Fatal(err)
	}
	script, err := filepath.Abs("host.sh")
	if err != nil {
		h.t.Fatal(err)
	}
	p, err := n.NS.Start("debian", "unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", script, n.Name, h.base, dir)
	if err != nil {
		h.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(h.t.Context(), 30*time.Second)
	defer cancel()
	err = lab.Until(ctx, 20*time.Millisecond, func() error {
		child, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", p.PID()))
		if err != nil {
			return err
		}
		pid := strings.TrimSpace(string(child))
		if _, err := os.Stat("/proc/" + pid + "/root/run/ready"); err != nil || pid == "" {
			return fmt.Errorf("%s: not up: %w\n%s", n.Name, err, p.Tail(20))
		}
		return os.WriteFile(filepath.Join(h.lab.Dir, n.Name+".pid"), []byte(pid), 0o644)
	})
	if err != nil {
		h.t.Fatal(err)
	}
}

// tools writes ssh and scp for the machine that the reader works on: they enter the systems.
func (h hosts) tools() {
	h.t.Helper()
	if err := os.MkdirAll(h.bin, 0o755); err != nil {
		h.t.Fatal(err)
	}
	for name, text := range map[string]string{
		"ssh": `pid=$(<` + h.lab.Dir + `/${1#root@}.pid); shift
exec nsenter -t "$pid" -m -u -n -p -r -w env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive bash -c "cd; $*"`,
		"scp": `to=${!#} host=${to%%:*} path=${to#*:}
[[ $path != */ ]] || path+=$(basename "$1")
` + h.bin + `/ssh "$host" "cat >$path" <"$1"`,
	} {
		if err := os.WriteFile(filepath.Join(h.bin, name), []byte("#!/bin/bash\nset -eu\n"+text+"\n"), 0o755); err != nil {
			h.t.Fatal(err)
		}
	}
}

// bash runs a script where the reader works.
func (h hosts) bash(dir, script string) (string, error) {
	ctx, cancel := context.WithTimeout(h.t.Context(), 5*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, "bash")
	c.Dir, c.Stdin = dir, strings.NewReader(script)
	c.Env = append(os.Environ(), "PATH="+h.bin+":"+os.Getenv("PATH"))
	c.WaitDelay = time.Second
	out, err := c.CombinedOutput()
	return string(out), err
}

func (h hosts) ssh(host, command string) (string, error) {
	out, err := exec.CommandContext(h.t.Context(), filepath.Join(h.bin, "ssh"), "root@"+host, command).Output()
	return strings.TrimSpace(string(out)), err
}

// calm holds that a healthy installation warns of nothing.
func (h hosts) calm() {
	h.t.Helper()
	for _, host := range []string{"relay", "shop-1", "shop-2"} {
		out, err := h.ssh(host, "grep -hE 'level=(WARN|ERROR) |panic: ' /var/log/edgemesh-*.log; test $? -le 1")
		if err != nil || out != "" {
			h.t.Errorf("%s warns: %v\n%s", host, err, out)
		}
	}
}

// logs are the last lines of the programs.
func (h hosts) logs() string {
	var b strings.Builder
	for _, host := range []string{"relay", "shop-1", "shop-2"} {
		out, _ := h.ssh(host, "tail -n 15 /var/log/edgemesh-*.log")
		fmt.Fprintf(&b, "== %s\n%s\n", host, out)
	}
	return b.String()
}
