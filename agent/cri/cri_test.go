package cri

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"edgemesh/test/tier"
)

// lay makes a host: files by path; "@NAME" is a file of testdata.
func lay(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for path, text := range files {
		if name, ok := strings.CutPrefix(text, "@"); ok {
			b, err := os.ReadFile(filepath.Join("testdata", name))
			if err != nil {
				t.Fatal(err)
			}
			text = string(b)
		}
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

const (
	k3sConf  = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml"
	k3sDir   = "/var/lib/rancher/k3s/agent/etc/cni/net.d"
	rke2Conf = "/var/lib/rancher/rke2/agent/etc/containerd/config.toml"
	oldBin   = "/var/lib/rancher/k3s/data/a3b46c0299091b71bfcc617b1e1fec1845c13bdd848584ceb39d2e700e702a4b/bin"
)

// What distributions write, and where their runtimes look.
func TestFind(t *testing.T) {
	for name, x := range map[string]struct {
		files         map[string]string
		runtime, file string
		conf, bin     string
	}{
		"k3s 1.27 with flannel":           {map[string]string{k3sConf: "@k3s-1.27-flannel.toml"}, "containerd of k3s", k3sConf, k3sDir, oldBin},
		"k3s 1.32 with flannel":           {map[string]string{k3sConf: "@k3s-1.32-flannel.toml"}, "containerd of k3s", k3sConf, k3sDir, "/var/lib/rancher/k3s/data/cni"},
		"k3s 1.35 with flannel":           {map[string]string{k3sConf: "@k3s-1.35-flannel.toml"}, "containerd of k3s", k3sConf, k3sDir, "/var/lib/rancher/k3s/data/cni"},
		"k3s 1.27 --flannel-backend=none": {map[string]string{k3sConf: "@k3s-1.27-none.toml"}, "containerd of k3s", k3sConf, defaultConfDir, defaultBinDir},
		"k3s 1.35 --flannel-backend=none": {map[string]string{k3sConf: "@k3s-1.35-none.toml"}, "containerd of k3s", k3sConf, defaultConfDir, defaultBinDir},
		"k3s 1.35, none, with a drop-in": {map[string]string{k3sConf: "@k3s-1.35-none.toml", filepath.Dir(k3sConf) + "/config-v3.toml.d/10-cni.toml": `
			[plugins.'io.containerd.cri.v1.runtime'.cni]
			bin_dirs = ["/opt/mine/bin/"]
			conf_dir = "/etc/mine"`},
			"containerd of k3s", filepath.Dir(k3sConf) + "/config-v3.toml.d/10-cni.toml", "/etc/mine", "/opt/mine/bin"},
		"k3s with an external runtime": {map[string]string{"/usr/local/bin/k3s": "", "/var/lib/rancher/k3s/agent/kubelet.kubeconfig": "", containerdConf: "@debian-1.6.toml"},
			"containerd", containerdConf, defaultConfDir, "/usr/lib/cni"},
		"RKE2": {map[string]string{rke2Conf: "version = 3"}, "containerd of RKE2", rke2Conf, defaultConfDir, defaultBinDir},
		"k3s beside docker": {map[string]string{k3sConf: "@k3s-1.35-none.toml", containerdConf: "@docker.toml"},
			"containerd of k3s", k3sConf, defaultConfDir, defaultBinDir},
		"Debian":                   {map[string]string{containerdConf: "@debian-1.6.toml"}, "containerd", containerdConf, defaultConfDir, "/usr/lib/cni"},
		"containerd 1.6's default": {map[string]string{containerdConf: "@containerd-1.6-default.toml"}, "containerd", containerdConf, defaultConfDir, defaultBinDir},
		"containerd 2's default":   {map[string]string{containerdConf: "@containerd-2-default.toml"}, "containerd", containerdConf, defaultConfDir, defaultBinDir},
		"version 1":                {map[string]string{containerdConf: "[plugins.cri.cni]\nconf_dir = '/a'\nbin_dir = '/b'"}, "containerd", containerdConf, "/a", "/b"},
		"version 3, old section": {map[string]string{containerdConf: "version = 3\n[plugins.'io.containerd.grpc.v1.cri'.cni]\nconf_dir = '/a'"},
			"containerd", containerdConf, defaultConfDir, defaultBinDir},
		"no configuration": {map[string]string{"/usr/bin/containerd": ""}, "containerd", "", defaultConfDir, defaultBinDir},
		"drop-ins, version 3": {map[string]string{containerdConf: "version = 3\nimports = ['conf.d/*.toml', '/srv/c.toml']\n[plugins.'io.containerd.cri.v1.runtime'.cni]\nconf_dir = '/a'",
			"/etc/containerd/conf.d/1.toml": "[plugins.'io.containerd.cri.v1.runtime'.containerd]\ndefault_runtime_name = 'nvidia'",
			"/etc/containerd/conf.d/2.toml": "version = 2\nimports = ['../config.toml']\n[plugins.'io.containerd.grpc.v1.cri'.cni]\nbin_dir = '/b'",
			"/srv/c.toml":                   "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.cni]\nbin_dirs = ['/c', '/b']"},
			"containerd", "/srv/c.toml", "/a", "/b /c"},
		"a drop-in replaces, version 2": {map[string]string{containerdConf: "version = 2\nimports = ['/etc/containerd/conf.d/*.toml']\n[plugins.'io.containerd.grpc.v1.cri'.cni]\nconf_dir = '/a'\nbin_dir = '/b'",
			"/etc/containerd/conf.d/1.toml": "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.cni]\nconf_dir = '/c'\nbin_dir = '/d'"},
			"containerd", "/etc/containerd/conf.d/1.toml", "/c", "/d"},
		"another configuration runs": {map[string]string{containerdConf: "@docker.toml", "/proc/17/cmdline": "dockerd\x00", "/proc/9/cmdline": "/usr/bin/containerd\x00",
			"/proc/102/cmdline": "/snap/microk8s/1/bin/containerd\x00--config\x00/var/snap/containerd.toml\x00", "/var/snap/containerd.toml": "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.cni]\nconf_dir = '/a'"},
			"containerd", "/var/snap/containerd.toml", "/a", defaultBinDir},
		"another node's, in a container": {map[string]string{k3sConf: "@k3s-1.35-none.toml", "/proc/9/cmdline": "containerd\x00-c\x00/its/own/config.toml\x00",
			"/proc/17/cmdline": "containerd\x00-c\x00" + k3sConf + "\x00"}, "containerd of k3s", k3sConf, defaultConfDir, defaultBinDir},
		"only another node's runs": {map[string]string{containerdConf: "@debian-1.6.toml", "/proc/9/cmdline": "containerd\x00--config=/its/own/config.toml\x00"},
			"containerd", containerdConf, defaultConfDir, "/usr/lib/cni"},
		"it runs without a configuration": {map[string]string{"/proc/9/cmdline": "containerd\x00"}, "containerd", "", defaultConfDir, defaultBinDir},
		"CRI-O":                           {map[string]string{crioConf: "@crio.conf"}, "CRI-O", crioConf, defaultConfDir, "/opt/cni/bin /usr/libexec/cni"},
		"CRI-O with drop-ins": {map[string]string{crioConf: "@crio.conf", crioDropIns + "/10-a.conf": "[crio.network]\nnetwork_dir = '/a/'", crioDropIns + "/20-b.conf": "[crio.network]\nplugin_dirs = ['/b']"},
			"CRI-O", crioDropIns + "/20-b.conf", "/a", "/b"},
		"CRI-O beside containerd": {map[string]string{crioConf: "@crio.conf", containerdConf: "@debian-1.6.toml", "/var/lib/kubelet/config.yaml": "containerRuntimeEndpoint: unix:///var/run/crio/crio.sock"},
			"CRI-O", crioConf, defaultConfDir, "/opt/cni/bin /usr/libexec/cni"},
		"containerd beside CRI-O": {map[string]string{crioConf: "@crio.conf", containerdConf: "@debian-1.6.toml"}, "containerd", containerdConf, defaultConfDir, "/usr/lib/cni"},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := Find(lay(t, x.files))
			if err != nil {
				t.Fatal(err)
			}
			if bin := strings.Join(c.BinDirs, " "); c.Runtime != x.runtime || c.File != x.file || c.ConfDir != x.conf || bin != x.bin {
				t.Errorf("%s looks in %s and %s, want %s (%s), %s and %s", c, c.ConfDir, bin, x.runtime, x.file, x.conf, x.bin)
			}
		})
	}
}

// Each says which file, and what to do.
func TestNotFound(t *testing.T) {
	const twoFiles = "version = 2\nimports = ['/etc/containerd/conf.d/*.toml']\n[plugins.'io.containerd.grpc.v1.cri'.cni]\nconf_dir = '/a'"
	for name, x := range map[string]struct {
		files map[string]string
		is    error
		says  []string
	}{
		"nothing":            {nil, ErrNone, nil},
		"k3s before a start": {map[string]string{"/usr/local/bin/k3s": ""}, ErrNotYet, []string{"k3s writes " + k3sConf}},
		"docker's":           {map[string]string{containerdConf: "@docker.toml"}, ErrUnusable, []string{containerdConf, `"cri"`, "remove it and restart containerd"}},
		"not TOML":           {map[string]string{containerdConf: "version = 2\n[plugins\n"}, ErrUnusable, []string{containerdConf, "line 2", "fix it"}},
		"not a list":         {map[string]string{crioConf: "[crio.network]\nplugin_dirs = '/b'"}, ErrUnusable, []string{crioConf, "line 2", "fix it"}},
		"no import":          {map[string]string{containerdConf: "version = 2\nimports = ['/srv/x.toml']"}, ErrUnusable, []string{"/srv/x.toml", "create it, or remove it from imports"}},
		"a broken import":    {map[string]string{k3sConf: "@k3s-1.35-none.toml", filepath.Dir(k3sConf) + "/config-v3.toml.d/x.toml": "="}, ErrUnusable, []string{"config-v3.toml.d/x.toml", "line 1"}},
		"containerd 1 or 2": {map[string]string{containerdConf: twoFiles, "/etc/containerd/conf.d/gpu.toml": "[plugins.'io.containerd.grpc.v1.cri'.containerd]\ndefault_runtime_name = 'nvidia'"},
			ErrUnusable, []string{"conf.d/gpu.toml", "cni.conf_dir", "put them into"}},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := Find(lay(t, x.files))
			if !errors.Is(err, x.is) {
				t.Fatalf("%v, %v, want %v", c, err, x.is)
			}
			for _, s := range x.says {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("%q does not say %q", err, s)
				}
			}
		})
	}
}

func TestDifferences(t *testing.T) {
	root := lay(t, map[string]string{k3sConf: "@k3s-1.27-flannel.toml", oldBin + "/loopback": ""})
	if err := os.Symlink(filepath.Base(filepath.Dir(oldBin)), filepath.Join(root, "/var/lib/rancher/k3s/data/current")); err != nil {
		t.Fatal(err)
	}
	c, err := Find(root)
	if err != nil {
		t.Fatal(err)
	}
	// A link that follows an upgrade of k3s is as good as the directory of the release.
	if got := c.BinDir(); got != "/var/lib/rancher/k3s/data/current/bin" {
		t.Errorf("the plugin goes to %s", got)
	}
	for _, same := range [][2]string{{k3sDir, oldBin}, {k3sDir + "/", c.BinDir()}, {"", ""}} {
		if d := c.Differences(same[0], same[1]); len(d) != 0 {
			t.Errorf("%v: %v", same, d)
		}
	}
	got := c.Differences(defaultConfDir, defaultBinDir)
	want := []Difference{{keyConfDir, defaultConfDir, k3sDir, c}, {keyBinDir, defaultBinDir, c.BinDir(), c}}
	if !slices.EqualFunc(got, want, func(a, b Difference) bool { return a.Key == b.Key && a.Have == b.Have && a.Want == b.Want }) {
		t.Errorf("differences are %v, want %v", got, want)
	}
	if text := got[0].String(); !strings.Contains(text, k3sConf) || !strings.Contains(text, "looks for CNI configurations in "+k3sDir+", not in "+defaultConfDir) {
		t.Error(text)
	}
}

// The real containerd understands these files as we do: it prints what it would use.
func TestAsContainerdReads(t *testing.T) {
	tier.All(t)
	program, err := exec.LookPath("containerd")
	if err != nil {
		t.Skip("SKIPPED: no containerd here")
	}
	for name, x := range map[string]struct{ main, dropIn string }{
		"k3s with flannel": {main: "@k3s-1.27-flannel.toml"},
		"k3s with none":    {main: "@k3s-1.27-none.toml"},
		"Debian":           {main: "@debian-1.6.toml"},
		"a drop-in": {main: "version = 2\nimports = ['DIR/*.toml']\n[plugins.'io.containerd.grpc.v1.cri'.cni]\nbin_dir = '/a'",
			dropIn: "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.cni]\nconf_dir = '/b'\nbin_dir = '/c'"},
		"an unrelated drop-in": {main: "version = 2\nimports = ['DIR/*.toml']\n[plugins.'io.containerd.grpc.v1.cri'.cni]\nconf_dir = '/a'",
			dropIn: "version = 2\n[debug]\nlevel = 'info'"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			root := lay(t, map[string]string{containerdConf: x.main})
			text, err := os.ReadFile(filepath.Join(root, containerdConf))
			if err == nil {
				err = os.WriteFile(filepath.Join(root, containerdConf), []byte(strings.ReplaceAll(string(text), "DIR", dir)), 0o644)
			}
			if err == nil && x.dropIn != "" {
				err = os.WriteFile(filepath.Join(dir, "1.toml"), []byte(x.dropIn), 0o644)
				if err == nil { // where we find it: below the root
					err = os.MkdirAll(filepath.Dir(filepath.Join(root, dir)), 0o755)
				}
				if err == nil {
					err = os.Symlink(dir, filepath.Join(root, dir))
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			dump, err := exec.CommandContext(t.Context(), program, "--config", filepath.Join(root, containerdConf), "config", "dump").Output()
			if err != nil {
				t.Fatal(err)
			}
			ours, err := Find(root)
			if err != nil {
				t.Fatal(err)
			}
			// The dump has no imports left to follow.
			_, settings, _ := strings.Cut(string(dump), "\n[plugins]")
			theirs, err := Find(lay(t, map[string]string{containerdConf: "version = 2\n[plugins]" + settings}))
			if err != nil {
				t.Fatal(err)
			}
			if ours.ConfDir != theirs.ConfDir || !slices.Equal(ours.BinDirs, theirs.BinDirs) {
				t.Errorf("we read %s %v, containerd %s %v", ours.ConfDir, ours.BinDirs, theirs.ConfDir, theirs.BinDirs)
			}
		})
	}
}
