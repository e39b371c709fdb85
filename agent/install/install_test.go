package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/cni/podlink"
	"edgemesh/internal/config"
	"edgemesh/internal/keyfile"
	"edgemesh/internal/membership/mesh"
	"edgemesh/manifests"
	"edgemesh/tunnel/p2p/who/clones"
)

// box is a host in a directory, and the agent's binaries to install.
type box struct {
	t     *testing.T
	o     Options
	out   bytes.Buffer
	calls []string // of systemctl, and "cleanup"
	// others are active: systemd-networkd, NetworkManager, dhcpcd.
	others bool
}

func newBox(t *testing.T, form Form) *box {
	t.Helper()
	bin := t.TempDir()
	for _, name := range []string{"edgemesh-agent", "edgemesh-cni"} {
		write(t, filepath.Join(bin, name), "binary of "+name)
	}
	b := &box{t: t}
	b.o = Options{
		Form: form, Root: t.TempDir(), Prefix: "/usr/local", StateDir: config.DefaultStateDir, DataDir: config.DefaultCNIDataDir,
		Binary: filepath.Join(bin, "edgemesh-agent"), Out: &b.out,
		Systemctl: func(_ context.Context, args ...string) error {
			if args[0] == "--quiet" && args[1] == "is-active" && !b.others {
				return errors.New("inactive")
			}
			b.calls = append(b.calls, strings.Join(args, " "))
			return nil
		},
		Cleanup: func(context.Context) error { b.calls = append(b.calls, "cleanup"); return nil },
	}
	for _, dir := range []string{"etc/systemd/system", "usr/local/bin", "var/lib"} { // what every host has
		if err := os.MkdirAll(filepath.Join(b.o.Root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

func (b *box) install() {
	b.t.Helper()
	b.out.Reset()
	if err := Install(b.t.Context(), b.o); err != nil {
		b.t.Fatalf("install: %v", err)
	}
}

func (b *box) uninstall() {
	b.t.Helper()
	b.out.Reset()
	if err := Uninstall(b.t.Context(), b.o); err != nil {
		b.t.Fatalf("uninstall: %v", err)
	}
}

func (b *box) said(words ...string) {
	b.t.Helper()
	for _, w := range words {
		if !strings.Contains(b.out.String(), w) {
			b.t.Errorf("did not say %q:\n%s", w, b.out.String())
		}
	}
}

// tree is what is in the host's directory: content by path, "/" for a directory, a
// link's target.
func (b *box) tree() map[string]string {
	b.t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(b.o.Root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel := strings.TrimPrefix(p, b.o.Root)
		if d.IsDir() {
			out[rel] = "/"
			return nil
		}
		if d.Type() == fs.ModeSymlink { // leads out of the directory
			out[rel], err = os.Readlink(p)
			return err
		}
		data, err := os.ReadFile(p)
		out[rel] = string(data)
		return err
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return out
}

// A proxy's password that every user may read is refused before anything is replaced: the agent that runs keeps running.
func TestOpenPassword(t *testing.T) {
	b := newBox(t, Systemd)
	write(t, b.o.Root+config.DefaultPath, "nodeName: a\nmembership: {file: /m}\nproxy: http://10.0.0.1:3128\nproxyCredentials: /etc/edgemesh/proxy\n")
	password := b.o.Root + "/etc/edgemesh/proxy"
	write(t, password, "joe:secret")
	before := b.tree()
	if err := Install(t.Context(), b.o); !errors.Is(err, ErrBadOption) || !strings.Contains(err.Error(), "chmod 600 "+password) {
		t.Errorf("%v", err)
	}
	if !maps.Equal(b.tree(), before) || len(b.calls) > 0 {
		t.Errorf("something was done: %v", b.calls)
	}
	if err := os.Chmod(password, 0o600); err != nil {
		t.Fatal(err)
	}
	b.install()
}

func TestUnitComesAndGoes(t *testing.T) {
	b := newBox(t, Systemd)
	before := b.tree()
	b.install()
	after := b.tree()
	for path, text := range map[string]string{
		"/usr/local/bin/edgemesh-agent":              "binary of edgemesh-agent",
		"/usr/local/bin/edgemesh-cni":                "binary of edgemesh-cni",
		"/etc/systemd/system/edgemesh-agent.service": manifests.AgentUnit("/usr/local"),
	} {
		if after[path] != text {
			t.Errorf("%s is %q", path, after[path])
		}
	}
	if _, err := config.Load(filepath.Join(b.o.Root, config.DefaultPath)); err != nil {
		t.Errorf("the configuration it wrote: %v", err)
	}
	if want := []string{"daemon-reload", "enable edgemesh-agent.service", "restart edgemesh-agent.service"}; !slices.Equal(b.calls, want) {
		t.Errorf("systemctl was called with %q", b.calls)
	}

	b.calls = nil
	b.uninstall()
	if want := []string{"disable --now edgemesh-agent.service", "cleanup", "daemon-reload"}; !slices.Equal(b.calls, want) {
		t.Errorf("uninstall called %q", b.calls)
	}
	if left := b.tree(); !maps.Equal(left, before) {
		t.Errorf("the host is not as it was: %v", left)
	}
}

func TestUpgradeKeepsWhatWasChanged(t *testing.T) {
	b := newBox(t, Systemd)
	b.install()
	unit := filepath.Join(b.o.Root, unitPath)
	conf := filepath.Join(b.o.Root, config.DefaultPath)
	write(t, unit, "[Service]\n# mine\n")
	write(t, conf, "membership: {file: /mine}\n")
	write(t, b.o.Binary, "a newer binary")
	b.install()
	b.said("kept     /etc/systemd/system/edgemesh-agent.service", "kept     /etc/edgemesh/agent.yaml", "written  /usr/local/bin/edgemesh-agent")
	now := b.tree()
	if now["/usr/local/bin/edgemesh-agent"] != "a newer binary" || now[unitPath] != "[Service]\n# mine\n" {
		t.Errorf("after the upgrade: %v", now)
	}

	b.uninstall()
	b.said("kept     /etc/systemd/system/edgemesh-agent.service (changed since it was written)")
	now = b.tree()
	if now[unitPath] == "" || now[config.DefaultPath] == "" {
		t.Error("uninstall removed what was changed by hand")
	}
	if now["/usr/local/bin/edgemesh-agent"] != "" {
		t.Error("uninstall left the binary")
	}
}

func TestPurgeLeavesNothing(t *testing.T) {
	b := newBox(t, Systemd)
	before := b.tree()
	b.install()
	write(t, filepath.Join(b.o.Root, config.DefaultPath), "membership: {file: /mine}\n")
	write(t, filepath.Join(b.o.Root, "/var/lib/cni/networks/edgemesh/10.244.1.2_default_web"), "record")
	b.o.Purge = true
	b.uninstall()
	left := b.tree()
	delete(left, "/var/lib/cni/networks") // others' networks may be in it
	delete(left, "/var/lib/cni")
	if !maps.Equal(left, before) {
		t.Errorf("left: %v", left)
	}
}

// The pods' addresses may be elsewhere, beside what is not ours.
func TestPurgeTakesTheConfiguredAddresses(t *testing.T) {
	b := newBox(t, Systemd)
	b.install()
	for _, name := range []string{"10.244.1.2_default_web", "fd00:1::2__c1", ".tmp0", "notes.txt"} {
		write(t, filepath.Join(b.o.Root, "/data/pods", name), "record")
	}
	b.o.Purge, b.o.DataDir = true, "/data/pods"
	b.uninstall()
	if left, err := os.ReadDir(filepath.Join(b.o.Root, "/data/pods")); err != nil || len(left) != 1 || left[0].Name() != "notes.txt" {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestForeignFilesAreLeftAlone(t *testing.T) {
	b := newBox(t, Systemd)
	conf := filepath.Join(b.o.Root, config.DefaultPath)
	write(t, conf, "membership: {file: /theirs}\n")
	write(t, filepath.Join(b.o.Root, unitPath), "[Unit]\n# a package's\n")
	before := b.tree()
	b.install()
	b.said("kept     /etc/edgemesh/agent.yaml", "kept     /etc/systemd/system/edgemesh-agent.service")
	b.uninstall()
	if left := b.tree(); !maps.Equal(left, before) {
		t.Errorf("the host is not as it was: %v", left)
	}
}

func TestWithoutSystemdItSaysWhatToRun(t *testing.T) {
	b := newBox(t, Systemd)
	b.o.Systemctl, b.o.Prefix = nil, "/opt/edgemesh"
	b.install()
	b.said("systemctl enable edgemesh-agent.service", "/opt/edgemesh/bin/edgemesh-agent run", "create /etc/edgemesh/cluster.yaml")
	if unit := b.tree()[unitPath]; !strings.Contains(unit, "\nExecStart=/opt/edgemesh/bin/edgemesh-agent run ") {
		t.Errorf("the unit does not start the binary in the prefix:\n%s", unit)
	}
	b.o.Cleanup = nil
	write(t, filepath.Join(b.o.Root, wantsPath), "") // the operator enabled it
	b.uninstall()
	b.said("systemctl stop edgemesh-agent.service", "edgemesh-agent cleanup")
	if _, err := os.Stat(filepath.Join(b.o.Root, wantsPath)); err == nil {
		t.Error("the unit is still wanted")
	}
}

func TestStaticPod(t *testing.T) {
	b := newBox(t, StaticPod)
	b.kubeconfig(kubeadm.kubeconfig, "client-certificate-data: eA==, client-key-data: eA==")
	before := b.tree()
	b.o.Image = "registry.example.org/edgemesh-agent:7"
	b.o.NodeName = "edge-7"
	b.install()
	now := b.tree()
	pod := now["/etc/kubernetes/manifests/edgemesh-agent.yaml"]
	if !strings.Contains(pod, "\n      image: registry.example.org/edgemesh-agent:7\n") || strings.Contains(pod, "localhost/") {
		t.Errorf("the pod:\n%s", pod)
	}
	if c := now[config.DefaultPath]; !strings.Contains(c, "kubeconfig: /etc/kubernetes/kubelet.conf") || !strings.Contains(c, `nodeName: "edge-7"`) {
		t.Errorf("the configuration: %q", c)
	}
	if now["/usr/local/bin/edgemesh-agent"] != "" {
		t.Error("a pod needs no binary on the host")
	}
	b.said("network.edgemesh.io/agent=static-pod")
	b.uninstall()
	if left := b.tree(); !maps.Equal(left, before) {
		t.Errorf("the host is not as it was: %v", left)
	}
	if !slices.Equal(b.calls, []string{"cleanup"}) {
		t.Errorf("called %q", b.calls)
	}
}

// TestOthersAreKeptOff: programs that configure every interface are kept off ours, and know it immediately; a file that the package
// brings is not written again, and an operator's own lines stay where they are.
func TestOthersAreKeptOff(t *testing.T) {
	b := newBox(t, Systemd)
	b.others = true
	root := b.o.Root
	write(t, filepath.Join(root, "etc/dhcpcd.conf"), "hostname\ninterface eth1\nstatic ip_address=10.0.0.2/24\n")
	write(t, filepath.Join(root, "etc/NetworkManager/NetworkManager.conf"), "[main]\n")
	before := b.tree()
	b.install()
	after := b.tree()
	for path, text := range map[string]string{
		"/etc/systemd/network/10-edgemesh.network":    "Name=edgemesh-* " + podlink.HostPrefix + "*",
		"/etc/NetworkManager/conf.d/10-edgemesh.conf": "interface-name:" + podlink.HostPrefix + "*",
		"/etc/dhcpcd.conf":                            "denyinterfaces edgemesh-* " + podlink.HostPrefix + "*\nhostname\ninterface eth1\n",
	} {
		if !strings.Contains(after[path], text) {
			t.Errorf("%s is %q", path, after[path])
		}
	}
	for _, unit := range []string{"systemd-networkd", "NetworkManager", "dhcpcd"} {
		if !slices.Contains(b.calls, "reload "+unit+".service") {
			t.Errorf("%s was not reloaded: %q", unit, b.calls)
		}
	}
	b.calls = nil
	b.install()
	if again := b.tree(); again["/etc/dhcpcd.conf"] != after["/etc/dhcpcd.conf"] || slices.Contains(b.calls, "reload dhcpcd.service") {
		t.Errorf("an upgrade repeats it: %q, %q", again["/etc/dhcpcd.conf"], b.calls)
	}
	b.uninstall()
	if left := b.tree(); !maps.Equal(left, before) {
		t.Errorf("the host is not as it was: %v", left)
	}
	write(t, filepath.Join(root, "usr/lib/systemd/network/10-edgemesh.network"), "of the package")
	b.install()
	if _, there := b.tree()["/etc/systemd/network/10-edgemesh.network"]; there {
		t.Error("the package's file is there already")
	}
}

// Another form that stands by takes over a network that is whole.
func TestUninstallCanLeaveTheNetwork(t *testing.T) {
	b := newBox(t, Systemd)
	before := b.tree()
	b.install()
	b.calls, b.o.KeepNetwork = nil, true
	b.uninstall()
	if slices.Contains(b.calls, "cleanup") || !slices.Contains(b.calls, "disable --now edgemesh-agent.service") {
		t.Errorf("called %q", b.calls)
	}
	if left := b.tree(); !maps.Equal(left, before) {
		t.Errorf("the host is not as it was: %v", left)
	}
	b.o.Purge = true
	if err := Uninstall(t.Context(), b.o); !errors.Is(err, ErrBadOption) {
		t.Errorf("--purge and --keep-network: %v", err)
	}
}

func TestRefusals(t *testing.T) {
	b := newBox(t, Systemd)
	if err := Uninstall(t.Context(), b.o); !errors.Is(err, ErrNotInstalled) {
		t.Errorf("uninstall of nothing: %v", err)
	}
	for name, set := range map[string]func(*Options){
		"relative prefix":  func(o *Options) { o.Prefix = "usr" },
		"unknown form":     func(o *Options) { o.Form = "rpm" },
		"two memberships":  func(o *Options) { o.Membership, o.Kubeconfig = "/a", "/b" },
		"two APIs":         func(o *Options) { o.Server, o.Kubeconfig = "http://127.0.0.1:10550", "/b" },
		"not a URL":        func(o *Options) { o.Server = "127.0.0.1:10550" },
		"image of a YAML":  func(o *Options) { o.Image = "x\n  y: z" },
		"no such root":     func(o *Options) { o.Root = filepath.Join(o.Root, "typo") },
		"relative pod dir": func(o *Options) { o.PodDir = "manifests" },
	} {
		o := b.o
		set(&o)
		if err := Install(t.Context(), o); !errors.Is(err, ErrBadOption) {
			t.Errorf("%s: %v", name, err)
		}
	}
	b.install()
	o := b.o
	o.Form = StaticPod
	if err := Install(t.Context(), o); !errors.Is(err, ErrOtherForm) {
		t.Errorf("a second form: %v", err)
	}
}

// A cleanup that failed can be tried again: the binary and the record are still
// there.
func TestFailedCleanupCanBeRepeated(t *testing.T) {
	b := newBox(t, Systemd)
	before := b.tree()
	b.install()
	failure := errors.New("rules are stuck")
	good := b.o.Cleanup
	b.o.Cleanup = func(context.Context) error { return failure }
	if err := Uninstall(t.Context(), b.o); !errors.Is(err, failure) {
		t.Fatalf("got %v", err)
	}
	if b.tree()["/usr/local/bin/edgemesh-agent"] == "" {
		t.Fatal("the binary is gone")
	}
	b.o.Cleanup = good
	b.uninstall()
	if left := b.tree(); !maps.Equal(left, before) {
		t.Errorf("the host is not as it was: %v", left)
	}
}

// An agent.yaml that exists is kept, so options that contradict it are refused, not ignored.
func TestMembershipIsSaidTwice(t *testing.T) {
	const file, kubeconfig, server = "membership: {file: /srv/cluster.yaml}", "membership: {kubernetes: {kubeconfig: /srv/config}}",
		"membership: {kubernetes: {server: 'http://127.0.0.1:8080'}}"
	for name, x := range map[string]struct {
		agent string
		set   func(*Options)
		says  string // "": installed
	}{
		"no option":          {file, func(*Options) {}, ""},
		"the same file":      {file, func(o *Options) { o.Membership = "/srv/cluster.yaml" }, ""},
		"the same config":    {kubeconfig, func(o *Options) { o.Kubeconfig = "/srv/config" }, ""},
		"the same server":    {server, func(o *Options) { o.Server = "http://127.0.0.1:8080" }, ""},
		"another file":       {file, func(o *Options) { o.Membership = "/a" }, `/etc/edgemesh/agent.yaml, which is kept, has membership.file: "/srv/cluster.yaml"`},
		"another config":     {kubeconfig, func(o *Options) { o.Kubeconfig = "/a" }, `has membership.kubernetes.kubeconfig: "/srv/config"`},
		"another server":     {server, func(o *Options) { o.Server = "https://a" }, `has membership.kubernetes.server: "http://127.0.0.1:8080"`},
		"a server, no API":   {file, func(o *Options) { o.Server = "https://a" }, `has membership.kubernetes.server: ""`},
		"a file, but an API": {server, func(o *Options) { o.Membership = "/a" }, `has membership.file: ""`},
		"broken":             {"membership: {}", func(o *Options) { o.Membership = "/a" }, "fix that file"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t, Systemd)
			write(t, filepath.Join(b.o.Root, config.DefaultPath), x.agent)
			x.set(&b.o)
			before := b.tree()
			err := Install(t.Context(), b.o)
			switch {
			case x.says == "" && err != nil:
				t.Error(err)
			case x.says == "":
			case !errors.Is(err, ErrBadOption) || !strings.Contains(err.Error(), x.says):
				t.Errorf("error %v, want %s", err, x.says)
			case !maps.Equal(b.tree(), before):
				t.Errorf("something was written: %v", b.tree())
			}
		})
	}
}

// The name that the host has now is written down: after a boot without DHCP it may be called localhost.
func TestNodeNameIsWritten(t *testing.T) {
	name := hostname()
	if name == "localhost" || mesh.CheckNodeName(name) != nil {
		t.Skip("this host has no name that a node can have: ", name)
	}
	b := newBox(t, Systemd)
	b.install()
	if c := b.tree()[config.DefaultPath]; !strings.Contains(c, fmt.Sprintf("nodeName: %q\n", name)) {
		t.Errorf("the configuration: %q", c)
	}
}

// TestIfCloned: on a copied machine the key is forgotten, elsewhere it stays.
func TestIfCloned(t *testing.T) {
	for name, tc := range map[string]struct {
		wanted      bool
		fingerprint string // "": none
		gone        bool
	}{
		"the original":       {true, "same", false},
		"a copy":             {true, "other", true},
		"not wanted":         {false, "other", false},
		"an older key":       {true, "", false},
		"nothing to be read": {true, "no hardware", false},
		"a replaced key":     {true, "another key", false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t, Systemd)
			dir := filepath.Join(b.o.Root, b.o.StateDir)
			key := filepath.Join(dir, "identity.key")
			serial, id := b.withKey(dir)
			if tc.fingerprint != "" {
				if _, err := clones.Remember(dir, b.o.Root, id); err != nil {
					t.Fatal(err)
				}
			}
			switch tc.fingerprint {
			case "other":
				write(t, serial, "uuid-2")
			case "another key":
				write(t, serial, "uuid-2")
				if err := os.Remove(key); err != nil {
					t.Fatal(err)
				}
				if _, err := keyfile.LoadOrCreate(dir); err != nil {
					t.Fatal(err)
				}
			case "no hardware":
				if err := os.Remove(serial); err != nil {
					t.Fatal(err)
				}
			}
			b.o.IfCloned, b.o.Forget = tc.wanted, func(dir string) error { return os.Remove(filepath.Join(dir, "identity.key")) }
			if err := Install(t.Context(), b.o); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(key); errors.Is(err, fs.ErrNotExist) != tc.gone {
				t.Errorf("the key: %v; want it gone: %v\n%s", err, tc.gone, &b.out)
			}
			if tc.gone != strings.Contains(b.out.String(), "register the new peer ID") {
				t.Errorf("it says:\n%s", &b.out)
			}
		})
	}
}

// withKey makes a key in a state directory, on hardware with a serial number, which is in a file.
func (b *box) withKey(dir string) (serial string, id peer.ID) {
	b.t.Helper()
	key, err := keyfile.LoadOrCreate(dir)
	if err == nil {
		id, err = peer.IDFromPrivateKey(key)
	}
	if err != nil {
		b.t.Fatal(err)
	}
	serial = filepath.Join(b.o.Root, "sys/class/dmi/id/product_uuid")
	write(b.t, serial, "uuid-1")
	return serial, id
}

// TestIfClonedComesLast: an installation that fails leaves the key.
func TestIfClonedComesLast(t *testing.T) {
	b := newBox(t, Systemd)
	dir := filepath.Join(b.o.Root, b.o.StateDir)
	serial, id := b.withKey(dir)
	if _, err := clones.Remember(dir, b.o.Root, id); err != nil {
		t.Fatal(err)
	}
	write(t, serial, "uuid-2")
	write(t, filepath.Join(b.o.Root, "etc/NetworkManager/conf.d"), "a file in the directory's place")
	b.o.IfCloned, b.o.Forget = true, func(string) error { t.Error("the key is gone"); return nil }
	if err := Install(t.Context(), b.o); err == nil {
		t.Error("it did not fail")
	}
}
