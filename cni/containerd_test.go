package main_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"edgemesh/test/tier"
)

// EDGEMESH_CONTAINERD_DIR names a directory with other binaries of containerd than
// the distribution's.

// machine is a node with a real containerd in network, mount and PID
// namespaces of its own, so that killing its first process is a power cut.
type machine struct {
	*node
	dir, cgroup string
	criTool     string
	cniVersion  string // that the runtime takes of those in the conflist
	proc        *exec.Cmd
	off         <-chan struct{} // closed when proc has ended
	log         *os.File
}

const pauseImage = "edgemesh.test/pause:1"

func newMachine(t *testing.T, podCIDRs ...string) *machine {
	t.Helper()
	if dir := os.Getenv("EDGEMESH_CONTAINERD_DIR"); dir != "" {
		t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	}
	for _, tool := range []string{"containerd", "ctr", "runc", "unshare"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("SKIP: %v; install the Debian packages containerd and runc", err)
		}
	}
	// Short: the runtime's sockets have paths of at most 108 bytes.
	dir, err := os.MkdirTemp("", "emcd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	m := &machine{node: newNode(t, podCIDRs...), dir: dir, criTool: filepath.Join(dir, "cri"), cgroup: "/" + filepath.Base(dir)}
	cmd := exec.Command("go", "build", "-o", m.criTool, ".")
	cmd.Dir = "../test/cni/testdata/cri"
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the CRI client: %v\n%s", err, out)
	}
	m.install(referencePlugins(t))
	t.Cleanup(func() {
		m.powerOff()
		m.removeCgroups()
		if t.Failed() {
			b, _ := os.ReadFile(m.path("log"))
			t.Logf("containerd's log, its end:\n%s", b[max(0, len(b)-6000):])
		}
	})
	if m.log, err = os.Create(m.path("log")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.log.Close() })
	m.powerOn()
	m.must("ctr", "-a", m.path("sock"), "-n", "k8s.io", "images", "import", m.path("pause.tar"))
	return m
}

func (m *machine) path(elem ...string) string {
	return filepath.Join(append([]string{m.dir}, elem...)...)
}

// install lays out plugins, conflist, image and configuration.
func (m *machine) install(plugins string) {
	m.t.Helper()
	pause := m.path("pause")
	if err := build(pause, "../test/kube/cmd/pause"); err != nil {
		m.t.Fatal(err)
	}
	image, err := imageArchive(pauseImage, pause, "pause")
	if err != nil {
		m.t.Fatal(err)
	}
	// As the agent writes it: containerd 1.6 takes 1.0.0; from 2 on it takes
	// 1.1.0 and calls STATUS and GC.
	m.cniVersion = "1.0.0"
	if strings.Contains(m.must("containerd", "--version"), " v2.") {
		m.cniVersion = "1.1.0"
	}
	conf := map[string]any{"cniVersion": "1.0.0"}
	for path, content := range map[string][]byte{
		m.path("pause.tar"): image,
		m.path("net.d", "10-edgemesh.conflist"): fmt.Appendf(nil, `{"cniVersion":"1.0.0","cniVersions":["1.0.0","1.1.0"],"name":"edgemesh","plugins":[%s,
			{"type":"portmap","capabilities":{"portMappings":true}}]}`, m.netconf(conf)),
		m.path("config.toml"): fmt.Appendf(nil, `version = 2
root = %q
state = %q
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs"]
[grpc]
  address = %q
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %q
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = %q
    conf_dir = %q
`, m.path("root"), m.path("state"), m.path("sock"), pauseImage, plugins, m.path("net.d")),
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			m.t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o755); err != nil {
			m.t.Fatal(err)
		}
	}
}

// imageArchive is an image that has one program under these paths, in the format of "docker save". It runs the first one.
func imageArchive(name, program string, paths ...string) ([]byte, error) {
	binary, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	pack := func(files map[string][]byte) []byte {
		var buf bytes.Buffer
		w := tar.NewWriter(&buf)
		for name, b := range files {
			_ = w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(b))})
			_, _ = w.Write(b)
		}
		_ = w.Close() // a bytes.Buffer takes everything
		return buf.Bytes()
	}
	files := map[string][]byte{}
	for _, p := range paths {
		files[p] = binary
	}
	layer := pack(files)
	sum := sha256.Sum256(layer)
	config, err := json.Marshal(map[string]any{"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": []string{"/" + paths[0]}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(sum[:])}}})
	if err != nil {
		return nil, err
	}
	manifest, err := json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": []string{name}, "Layers": []string{"layer.tar"}}})
	return pack(map[string][]byte{"layer.tar": layer, "config.json": config, "manifest.json": manifest}), err
}

func (m *machine) powerOn() {
	m.t.Helper()
	// The shims' sockets and runc's state are always below /run/containerd.
	m.proc = exec.Command("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-ec",
		`mkdir -p /run/containerd; mount -t tmpfs tmpfs /run/containerd; exec containerd --config "$0"`, m.path("config.toml"))
	m.proc.Stdout, m.proc.Stderr = m.log, m.log
	m.proc.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // the test may be killed
	started, off := make(chan error, 1), make(chan struct{})
	m.off = off
	go func() {
		defer close(off)
		runtime.LockOSThread() // which is in the namespace, and whose end the signal follows: it ends with containerd
		err := m.netns.Set()
		if err == nil {
			err = m.proc.Start()
		}
		if started <- err; err == nil {
			_ = m.proc.Wait() // killed
		}
	}()
	if err := <-started; err != nil {
		m.t.Fatal(err)
	}
	m.cri("ready")
}

// powerOff kills everything immediately.
func (m *machine) powerOff() {
	if m.proc != nil && m.proc.Process != nil {
		_ = m.proc.Process.Kill()
		<-m.off
		m.proc = nil
	}
}

// powerCut is powerOff and a start with what a disk keeps.
func (m *machine) powerCut(podCIDRs ...string) {
	m.t.Helper()
	m.powerOff()
	m.removeCgroups()
	if err := os.RemoveAll(m.path("state")); err != nil {
		m.t.Fatal(err)
	}
	m.reboot(podCIDRs...)
	m.powerOn()
}

// removeCgroups removes what the sandboxes leave; processes in it are dead.
func (m *machine) removeCgroups() {
	roots, _ := filepath.Glob("/sys/fs/cgroup/*" + m.cgroup)
	for _, root := range append(roots, "/sys/fs/cgroup"+m.cgroup) {
		_ = exec.Command("find", root, "-depth", "-type", "d", "-exec", "rmdir", "{}", "+").Run()
	}
}

func (m *machine) must(command ...string) string {
	m.t.Helper()
	out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
	if err != nil {
		m.t.Fatalf("%s: %v\n%s", strings.Join(command, " "), err, out)
	}
	return string(out)
}

func (m *machine) cri(args ...string) []string {
	m.t.Helper()
	return strings.Fields(m.must(append([]string{m.criTool, m.path("sock")}, args...)...))
}

// sandbox runs a pod's sandbox, and returns its ID and addresses.
func (m *machine) sandbox(name string, attempt int, port string) (id string, addrs []string) {
	m.t.Helper()
	f := m.cri("run", name, "uid-"+name, fmt.Sprint(attempt), m.cgroup, port)
	if len(f) < 3 || f[1] != "SANDBOX_READY" {
		m.t.Fatalf("sandbox of %s: %v", name, f)
	}
	return f[0], f[2:]
}

// A real containerd makes pods, loses power, and makes them again, with the
// calls it makes then: late, repeated, or never.
func TestContainerd(t *testing.T) {
	tier.All(t)
	m := newMachine(t, dualStack...)
	ids, addrs := map[string]string{}, map[string][]string{}
	for i, name := range []string{"web-0", "web-1", "web-2"} {
		port := "0"
		if i == 0 {
			port = "8080"
		}
		ids[name], addrs[name] = m.sandbox(name, 0, port)
		if len(addrs[name]) != 2 {
			t.Fatalf("%s: addresses %v", name, addrs[name])
		}
		for _, a := range addrs[name] {
			if err := answers(m.netns, a); err != nil {
				t.Error(err)
			}
		}
	}
	for boot := 1; boot <= 2; boot++ {
		m.powerCut(dualStack...)
		before := func(name string) {
			m.cri("stop", ids[name])
			m.cri("stop", ids[name]) // kubelet does it again
			m.cri("remove", ids[name])
		}
		before("web-0")
		for _, name := range []string{"web-2", "web-0", "web-1"} {
			old := ids[name]
			id, got := m.sandbox(name, boot, "0")
			wantEqual(t, fmt.Sprintf("%s after power cut %d", name, boot), got, addrs[name])
			if ids[name] = id; name == "web-1" {
				m.cri("stop", old) // the old sandbox's DEL after the new one's ADD
				m.cri("remove", old)
			}
		}
		for name, list := range addrs {
			for _, a := range list {
				if err := answers(m.netns, a); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
	}
	m.checkStatus()
	for _, id := range ids {
		m.cri("stop", id)
		m.cri("remove", id)
	}
	if u, v := m.used(), m.veths(); len(u) != 0 || len(v) != 0 {
		t.Errorf("left: %v %v", u, v)
	}
}

// checkStatus checks that a runtime that calls STATUS reports why the network is
// not ready, until the agent has written subnet.json.
func (m *machine) checkStatus() {
	m.t.Helper()
	if m.cniVersion != "1.1.0" {
		return
	}
	if err := os.Remove(filepath.Join(m.run, "subnet.json")); err != nil {
		m.t.Fatal(err)
	}
	if got := strings.Join(m.cri("network"), " "); !strings.HasPrefix(got, "false") || !strings.Contains(got, "subnet is not known yet") {
		m.t.Errorf("without a subnet the runtime says %q", got)
	}
	m.subnet(dualStack...)
	if got := strings.Join(m.cri("network"), " "); !strings.HasPrefix(got, "true") {
		m.t.Errorf("with a subnet the runtime says %q", got)
	}
}
