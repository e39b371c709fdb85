package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"edgemesh/agent/findings"
)

// doctor on a host sees where its container runtime looks; in a pod there is nothing to see.
func TestRuntimeFinding(t *testing.T) {
	const debian = "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.cni]\nbin_dir = '/usr/lib/cni'\n"
	for name, x := range map[string]struct {
		containerd, confDir, binDir string
		want                        findings.Severity
		says                        []string // the finding, then the remedy
	}{
		"no runtime": {"", "/etc/cni/net.d", "/opt/cni/bin", findings.OK, nil},
		"as it is":   {debian, "/etc/cni/net.d", "/usr/lib/cni", findings.OK, []string{"looks in /etc/cni/net.d and /usr/lib/cni", ""}},
		"plugins elsewhere": {debian, "/etc/cni/net.d", "/opt/cni/bin", findings.Broken,
			[]string{"/etc/containerd/config.toml", "set cniBinDir: /usr/lib/cni in the agent's configuration and restart the agent"}},
		"configurations elsewhere": {"version = 3", "/var/lib/rancher/k3s/agent/etc/cni/net.d", "", findings.Broken,
			[]string{"looks for CNI configurations in /etc/cni/net.d", "set cniConfDir: /etc/cni/net.d"}},
		"broken": {"=", "/etc/cni/net.d", "/opt/cni/bin", findings.Warning, []string{"line 1", "fix the cause"}},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			if x.containerd != "" {
				file := filepath.Join(root, "/etc/containerd/config.toml")
				if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, []byte(x.containerd), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			got := checkRuntime(root, x.confDir, x.binDir)
			if len(x.says) == 0 {
				if len(got) != 0 {
					t.Errorf("findings %+v, want none", got)
				}
				return
			}
			if len(got) != 1 || got[0].Severity != x.want || !strings.Contains(got[0].Text, x.says[0]) || !strings.Contains(got[0].Remedy, x.says[1]) {
				t.Errorf("findings %+v, want %v with %q", got, x.want, x.says)
			}
		})
	}
}

// A torn file before ours is named by the finding that status shows: containerd stops there, CRI-O does not.
func TestBrokenFileBeforeOurs(t *testing.T) {
	root, dir := t.TempDir(), t.TempDir()
	if f := checkDirectory(root, dir); f != nil {
		t.Errorf("an empty directory: %+v", f)
	}
	file := filepath.Join(dir, "00-multus.conf")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if f := checkDirectory(root, dir); f == nil || f.ID != "cni" || f.Severity != findings.Broken || !strings.Contains(f.Text, file) || !strings.Contains(f.Remedy, file) {
		t.Errorf("a torn file: %+v", f)
	}
	if err := os.MkdirAll(filepath.Join(root, "etc/crio"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "etc/crio/crio.conf"), []byte("[crio.network]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if f := checkDirectory(root, dir); f == nil || f.Severity != findings.Warning {
		t.Errorf("CRI-O: %+v", f)
	}
}
