package install

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"edgemesh/internal/config"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/manifests"
)

// kubeconfig writes one on the host, for a user with these credentials.
func (b *box) kubeconfig(path, user string) {
	b.t.Helper()
	write(b.t, filepath.Join(b.o.Root, path), fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: x,
  clusters: [{name: c, cluster: {server: "https://127.0.0.1:6443", certificate-authority-data: eA==}}],
  users: [{name: u, user: {%s}}], contexts: [{name: x, context: {cluster: c, user: u}}]}`, user))
}

// rotated makes the certificate of a kubelet that rotates it: a link to the newest.
func (b *box) rotated() {
	b.t.Helper()
	pki := filepath.Join(b.o.Root, "/var/lib/kubelet/pki")
	write(b.t, filepath.Join(pki, "kubelet-client-2026.pem"), "certificate")
	if err := os.Symlink("/var/lib/kubelet/pki/kubelet-client-2026.pem", filepath.Join(pki, "kubelet-client-current.pem")); err != nil {
		b.t.Fatal(err)
	}
}

// pod is the static pod as kubelet reads it.
type pod struct {
	Spec struct {
		Containers []struct {
			Image           string
			SecurityContext struct{ Capabilities struct{ Add []string } }
			VolumeMounts    []struct {
				Name, MountPath string
				ReadOnly        bool
			}
			StartupProbe, ReadinessProbe *struct {
				HTTPGet struct {
					Host string
					Port int
				}
			}
		}
		Volumes []struct {
			Name     string
			HostPath struct{ Path, Type string }
		}
	}
}

// installed reads the static pod, and checks that each mount has its volume.
func (b *box) installed(dir string) pod {
	b.t.Helper()
	var p pod
	if err := yaml.Unmarshal([]byte(b.tree()[filepath.Join(dir, podName)]), &p); err != nil {
		b.t.Fatal(err)
	}
	if len(p.Spec.Containers) != 1 {
		b.t.Fatalf("no static pod in %s", dir)
	}
	at := map[string]string{"sysctls": "/host/proc/sys/net", "resolv-conf": "/host/etc/resolv.conf", "resolv-networkmanager": "/host/run/NetworkManager",
		"resolv-systemd": "/host/run/systemd/resolve", "resolv-resolvconf": "/host/run/resolvconf",
		"resolv-netconfig": "/host/run/netconfig", "resolv-connman": "/host/run/connman"}
	for _, v := range p.Spec.Volumes {
		if at[v.Name] == "" {
			at[v.Name] = v.HostPath.Path
		}
	}
	for _, m := range p.Spec.Containers[0].VolumeMounts {
		if at[m.Name] != m.MountPath {
			b.t.Errorf("volume %s is mounted at %s, is the host's %q", m.Name, m.MountPath, at[m.Name])
		}
	}
	if len(at) != len(p.Spec.Containers[0].VolumeMounts) {
		b.t.Errorf("volumes %v, mounts %v", p.Spec.Volumes, p.Spec.Containers[0].VolumeMounts)
	}
	return p
}

// named are the volumes after those that every pod has, as PATH:TYPE.
func (p pod) named() []string {
	var out []string
	for _, v := range p.Spec.Volumes {
		if !slices.Contains([]string{"xtables-lock", "tun", "sysctls"}, v.Name) && !strings.HasPrefix(v.Name, "resolv-") {
			out = append(out, v.HostPath.Path+":"+v.HostPath.Type)
		}
	}
	return out
}

// What is written on a node of kubeadm's is the file that one may copy by hand.
func TestStaticPodOfKubeadm(t *testing.T) {
	b := newBox(t, StaticPod)
	b.rotated()
	b.kubeconfig(kubeadm.kubeconfig, "client-certificate: /var/lib/kubelet/pki/kubelet-client-current.pem, client-key: /var/lib/kubelet/pki/kubelet-client-current.pem")
	b.install()
	byHand, err := os.ReadFile("../../manifests/static-pod/edgemesh-agent.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if got := b.tree()["/etc/kubernetes/manifests/edgemesh-agent.yaml"]; got != string(byHand) {
		t.Errorf("manifests/static-pod/edgemesh-agent.yaml is another pod than the one that install writes:\n%s", got)
	}
}

func TestStaticPodMountsWhatIsNamed(t *testing.T) {
	usual := []string{"/etc/edgemesh:Directory", "/var/lib/edgemesh:DirectoryOrCreate", "/run/edgemesh:DirectoryOrCreate",
		"/etc/cni/net.d:DirectoryOrCreate", "/opt/cni/bin:DirectoryOrCreate", "/var/lib/cni:DirectoryOrCreate"}
	for name, x := range map[string]struct {
		config, user string // agent.yaml, and the user in the kubeconfig it names
		files        []string
		want         []string
	}{
		"a file":           {"membership: {file: /etc/edgemesh/cluster.yaml}", "", nil, usual},
		"a file elsewhere": {"membership: {file: /srv/mesh/cluster.yaml}", "", nil, slices.Concat(usual, []string{"/srv/mesh:DirectoryOrCreate"})},
		"a join secret":    {"joinSecretFile: /srv/join/secret\nmembership: {file: /etc/edgemesh/cluster.yaml}", "", nil, slices.Concat(usual, []string{"/srv/join:Directory"})},
		"everything elsewhere": {"stateDir: /srv/state\nruntimeDir: /run/mesh\ncniConfDir: /srv/net.d\ncniBinDir: \"\"\ncniDataDir: /srv/records\n" +
			"membership: {file: /etc/edgemesh/cluster.yaml}", "", nil,
			[]string{"/etc/edgemesh:Directory", "/srv/state:DirectoryOrCreate", "/run/mesh:DirectoryOrCreate", "/srv/net.d:DirectoryOrCreate", "/srv/records:DirectoryOrCreate"}},
		"a directory to write in one to read": {"stateDir: /etc/edgemesh/state\nmembership: {file: /etc/edgemesh/cluster.yaml}", "", nil,
			slices.Concat([]string{usual[0], "/etc/edgemesh/state:DirectoryOrCreate"}, usual[2:])},
		"a token in a file": {"membership: {kubernetes: {kubeconfig: /srv/kube/config}}", "tokenFile: ../token", []string{"/srv/token"},
			slices.Concat(usual, []string{"/srv/kube/config:File", "/srv/token:File"})},
		"certificates in two files": {"membership: {kubernetes: {kubeconfig: /srv/kube/config}}", "client-certificate: a.crt, client-key: /srv/a.key",
			[]string{"/srv/kube/a.crt", "/srv/a.key"}, slices.Concat(usual, []string{"/srv/kube/config:File", "/srv/kube/a.crt:File", "/srv/a.key:File"})},
		"data before files": {"membership: {kubernetes: {kubeconfig: /srv/kube/config}}", "client-certificate: a.crt, client-certificate-data: eA==, client-key-data: eA==",
			nil, slices.Concat(usual, []string{"/srv/kube/config:File"})},
		"MetaServer": {"membership: {kubernetes: {server: 'http://127.0.0.1:10550'}}", "", nil, slices.Concat(usual, []string{"/etc/kubeedge/certs:DirectoryOrCreate", "/etc/kubeedge/config:DirectoryOrCreate"})},
		"YurtHub":    {"membership: {kubernetes: {server: 'http://127.0.0.1:10261'}}", "", nil, usual},
		"a certificate and its key": {"membership: {kubernetes: {server: 'http://127.0.0.1:10550', nodeCertificate: /srv/a/x.crt, nodeKey: /srv/b/x.key}}", "", nil,
			slices.Concat(usual, []string{"/srv/a:DirectoryOrCreate", "/srv/b:DirectoryOrCreate", "/etc/kubeedge/config:DirectoryOrCreate"})},
		"a certificate with its key": {"membership: {kubernetes: {server: 'http://127.0.0.1:8080', nodeCertificate: /srv/a/x.crt, nodeKey: /srv/a/x.key}}", "", nil,
			slices.Concat(usual, []string{"/srv/a:DirectoryOrCreate"})},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t, StaticPod)
			write(t, filepath.Join(b.o.Root, config.DefaultPath), x.config)
			b.kubeconfig("/srv/kube/config", x.user)
			for _, f := range x.files {
				write(t, filepath.Join(b.o.Root, f), "secret")
			}
			b.install()
			if got := b.installed("/etc/kubernetes/manifests").named(); !slices.Equal(got, x.want) {
				t.Errorf("mounts\n%q, want\n%q", got, x.want)
			}
		})
	}
}

// k3s gives containerd directories of its own only with its own flannel; what its containerd reads counts.
func TestStaticPodOnK3s(t *testing.T) {
	const dir = "/var/lib/rancher/k3s/agent"
	for flannel, x := range map[string]struct{ recorded, conf, bin string }{
		"vxlan": {"k3s-1.35-flannel.toml", dir + "/etc/cni/net.d", "/var/lib/rancher/k3s/data/cni"},
		"none":  {"k3s-1.35-none.toml", "/etc/cni/net.d", "/opt/cni/bin"},
	} {
		t.Run(flannel, func(t *testing.T) {
			b := newBox(t, StaticPod)
			b.kubeconfig(dir+"/kubelet.kubeconfig", fmt.Sprintf("client-certificate: %s/client-kubelet.crt, client-key: %s/client-kubelet.key", dir, dir))
			write(t, filepath.Join(b.o.Root, dir, "client-kubelet.crt"), "certificate")
			write(t, filepath.Join(b.o.Root, dir, "client-kubelet.key"), "key")
			recorded, err := os.ReadFile("../cri/testdata/" + x.recorded)
			if err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(b.o.Root, dir, "etc/containerd/config.toml"), string(recorded))
			before := b.tree()
			b.install()
			c, err := config.Load(filepath.Join(b.o.Root, config.DefaultPath))
			if err != nil || c.CNIConfDir != x.conf || c.CNIBinDir != x.bin || c.Membership.Kubernetes.Kubeconfig != dir+"/kubelet.kubeconfig" {
				t.Errorf("configuration %+v, %v", c, err)
			}
			want := []string{"/etc/edgemesh:Directory", "/var/lib/edgemesh:DirectoryOrCreate", "/run/edgemesh:DirectoryOrCreate",
				x.conf + ":DirectoryOrCreate", x.bin + ":DirectoryOrCreate", "/var/lib/cni:DirectoryOrCreate",
				dir + "/kubelet.kubeconfig:File", dir + "/client-kubelet.crt:File", dir + "/client-kubelet.key:File"}
			if got := b.installed(dir + "/pod-manifests").named(); !slices.Equal(got, want) {
				t.Errorf("mounts\n%q, want\n%q", got, want)
			}
			b.uninstall()
			if left := b.tree(); len(left) != len(before) {
				t.Errorf("the host is not as it was: %v", left)
			}
		})
	}
}

// What is wrong between agent.yaml and the runtime is left to do, with the file and the key.
func TestRuntimesDirectories(t *testing.T) {
	const other = "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.cni]\nbin_dir = '/usr/lib/cni'\n"
	for name, x := range map[string]struct{ agent, containerd, says, not string }{
		"none yet":       {"", other, "", "left to do:\n  make sure"},
		"another":        {"cniBinDir: /opt/cni/bin\n", other, "in /etc/edgemesh/agent.yaml set cniBinDir: /usr/lib/cni, and run this command again: containerd (/etc/containerd/config.toml)", ""},
		"the same":       {"cniBinDir: /usr/lib/cni\n", other, "", "cniBinDir:"},
		"keeps a plugin": {"cniMode: keep\n", other, "", "cniBinDir:"},
		"broken":         {"", "version = \n", "make sure that cniConfDir and cniBinDir", ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t, Systemd)
			write(t, filepath.Join(b.o.Root, "/etc/containerd/config.toml"), x.containerd)
			if x.agent != "" {
				write(t, filepath.Join(b.o.Root, config.DefaultPath), x.agent+"membership: {file: /etc/edgemesh/cluster.yaml}\n")
			}
			b.install()
			b.said(x.says)
			if x.not != "" && strings.Contains(b.out.String(), x.not) {
				t.Errorf("said %q:\n%s", x.not, b.out.String())
			}
			if c, err := config.Load(filepath.Join(b.o.Root, config.DefaultPath)); name == "none yet" && (err != nil || c.CNIBinDir != "/usr/lib/cni") {
				t.Errorf("the new configuration has %+v, %v", c, err)
			}
		})
	}
}

// A cluster that is too old is refused before anything is written; one that cannot be reached is not.
func TestOldCluster(t *testing.T) {
	for version, refused := range map[string]bool{"v1.27.6": true, "v1.35.4": false, "": false} {
		t.Run(version, func(t *testing.T) {
			b := newBox(t, Systemd)
			b.kubeconfig(kubeadm.kubeconfig, "token: t")
			before := b.tree()
			b.o.Version = func(_ context.Context, a client.Access) (string, error) {
				if a != (client.Access{Kubeconfig: kubeadm.kubeconfig}) {
					t.Errorf("queried %+v", a)
				}
				if version == "" {
					return "", errors.New("no uplink")
				}
				return version, nil
			}
			err := Install(t.Context(), b.o)
			if errors.Is(err, client.ErrTooOld) != refused || !refused && err != nil {
				t.Fatalf("error %v, refused %v", err, refused)
			}
			if left := b.tree(); refused && len(left) != len(before) {
				t.Errorf("it wrote %v", left)
			}
		})
	}
}

// An edge of KubeEdge: MetaServer is its API, and edgecore says where static pods are.
func TestEdgeOfKubeEdge(t *testing.T) {
	for name, x := range map[string]struct{ config, podDir, says string }{
		"defaults":      {"modules: {metaManager: {metaServer: {enable: true}}}", "/etc/kubeedge/manifests", ""},
		"directory":     {"modules: {edged: {tailoredKubeletConfig: {staticPodPath: /etc/pods}}, metaManager: {metaServer: {enable: true}}}", "/etc/pods", ""},
		"no MetaServer": {"modules: {edged: {}}", "/etc/kubeedge/manifests", "modules.metaManager.metaServer.enable: true"},
		"not YAML":      {"modules: [", "/etc/kubeedge/manifests", "/etc/kubeedge/config/edgecore.yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t, StaticPod)
			write(t, filepath.Join(b.o.Root, "/etc/kubeedge/config/edgecore.yaml"), x.config)
			b.install()
			c, err := config.Load(filepath.Join(b.o.Root, config.DefaultPath))
			if err != nil || c.Membership.Kubernetes == nil || c.Membership.Kubernetes.Server != "http://127.0.0.1:10550" {
				t.Errorf("configuration %+v, %v", c, err)
			}
			// Without edgecore's certificate no controller lets the edge register.
			p := b.installed(x.podDir)
			if got := p.named(); !slices.Contains(got, "/etc/kubeedge/certs:DirectoryOrCreate") {
				t.Errorf("the pod in %s mounts %q", x.podDir, got)
			}
			for _, m := range p.Spec.Containers[0].VolumeMounts {
				if m.Name == "node-certificate" && !m.ReadOnly {
					t.Error("the pod may write to edgecore's certificates")
				}
			}
			b.said(x.says)
		})
	}
}

// With requireAuthorization MetaServer refuses an agent without a token: so does install, unless the agent uses another API or none.
func TestEdgeThatWantsTokens(t *testing.T) {
	const meta, want = "membership: {kubernetes: {server: 'http://127.0.0.1:10550'}}", "requireAuthorization is on in /etc/kubeedge/config/edgecore.yaml"
	for name, x := range map[string]struct {
		agent string // agent.yaml, if there is one
		set   func(*Options)
		fails bool
	}{
		"nothing said":       {"", func(*Options) {}, true},
		"another form":       {"", func(o *Options) { o.Form = StaticPod }, true},
		"MetaServer said":    {"", func(o *Options) { o.Server = "https://169.254.30.10:10550" }, true},
		"agent.yaml":         {meta, func(*Options) {}, true},
		"agent.yaml, none":   {"membership: {kubernetes: {}}", func(*Options) {}, true},
		"agent.yaml, file":   {"membership: {file: /etc/edgemesh/cluster.yaml}", func(*Options) {}, false},
		"agent.yaml, config": {"membership: {kubernetes: {kubeconfig: /srv/config}}", func(*Options) {}, false},
		"kubeconfig":         {"", func(o *Options) { o.Kubeconfig = "/srv/config" }, false},
		"membership":         {"", func(o *Options) { o.Membership = "/srv/cluster.yaml" }, false},
		"another server":     {"", func(o *Options) { o.Server = "http://127.0.0.1:8080" }, false},
		"the DaemonSet":      {"", func(o *Options) { o.Form, o.NodeIP = DaemonSet, NodeIPOff }, false},
	} {
		for _, enabled := range []string{"true", "false"} {
			t.Run(name+", MetaServer "+enabled, func(t *testing.T) {
				b := newBox(t, Systemd)
				write(t, filepath.Join(b.o.Root, edgeCore), "featureGates: {requireAuthorization: true}\nmodules: {metaManager: {metaServer: {enable: "+enabled+"}}}")
				if x.agent != "" {
					write(t, filepath.Join(b.o.Root, config.DefaultPath), x.agent)
				}
				x.set(&b.o)
				before := b.tree()
				err := Install(t.Context(), b.o)
				switch {
				case !x.fails && err != nil:
					t.Error(err)
				case !x.fails:
					if b.o.Form != DaemonSet && strings.Contains(b.out.String(), "metaServer.enable") {
						t.Errorf("MetaServer is not used:\n%s", b.out.String())
					}
				case !errors.Is(err, ErrUnfit) || !strings.Contains(err.Error(), want):
					t.Errorf("not refused: %v", err)
				case !maps.Equal(b.tree(), before):
					t.Errorf("something was written: %v", b.tree())
				}
			})
		}
	}
}

// A host that is not a node yet, such as an image: what kubelet's kubeconfig will name
// is known.
func TestStaticPodBeforeTheNodeJoins(t *testing.T) {
	for _, d := range []distribution{kubeadm, k3s} {
		b := newBox(t, StaticPod)
		b.o.Kubeconfig = d.kubeconfig
		b.install()
		b.said("create " + d.kubeconfig + "")
		got := b.installed(d.podDir).named()
		for _, f := range d.credentials {
			if !slices.Contains(got, f+":"+d.kind) {
				t.Errorf("mounts %q, want %s among them", got, f)
			}
		}
		if !slices.Contains(got, d.kubeconfig+":File") {
			t.Errorf("mounts %q, want %s among them", got, d.kubeconfig)
		}
	}
}

func TestStaticPodProbes(t *testing.T) {
	for address, want := range map[string]string{
		"127.0.0.1:9999": "127.0.0.1:9999", "0.0.0.0:9469": "127.0.0.1:9469", "mesh:9469": "127.0.0.1:9469", "'[::1]:9469'": "::1:9469", "10.1.2.3:80": "10.1.2.3:80", `""`: "none",
	} {
		b := newBox(t, StaticPod)
		write(t, filepath.Join(b.o.Root, config.DefaultPath), "membership: {file: /etc/edgemesh/cluster.yaml}\nmetricsAddress: "+address)
		b.install()
		c := b.installed("/etc/kubernetes/manifests").Spec.Containers[0]
		got := "none"
		if c.StartupProbe != nil && c.ReadinessProbe != nil && *c.StartupProbe == *c.ReadinessProbe {
			got = fmt.Sprintf("%s:%d", c.StartupProbe.HTTPGet.Host, c.StartupProbe.HTTPGet.Port)
		}
		if got != want {
			t.Errorf("metricsAddress %s: probes query %s, want %s", address, got, want)
		}
	}
}

// To listen on 443 takes a capability, of root too: in the pod, and in the unit.
func TestLowPorts(t *testing.T) {
	for keys, want := range map[string]bool{
		"listen: [/ip4/0.0.0.0/tcp/443]": true, "listen: [/ip4/0.0.0.0/udp/1023/quic-v1]": true, "listen: [/ip4/0.0.0.0/tcp/1024]": false,
		"listen: [/ip6/::/udp/4001/quic-v1]": false, "metricsAddress: 127.0.0.1:990": true, "metricsAddress: '[::1]:1024'": false, "metricsAddress: ''": false,
	} {
		b := newBox(t, StaticPod)
		write(t, filepath.Join(b.o.Root, config.DefaultPath), "membership: {file: /etc/edgemesh/cluster.yaml}\n"+keys)
		b.install()
		add := b.installed("/etc/kubernetes/manifests").Spec.Containers[0].SecurityContext.Capabilities.Add
		if slices.Contains(add, "NET_BIND_SERVICE") != want || !slices.Contains(add, "NET_ADMIN") {
			t.Errorf("%s: capabilities %v", keys, add)
		}
	}
	if !strings.Contains(manifests.AgentUnit("/usr/local"), " CAP_NET_BIND_SERVICE ") {
		t.Error("the unit may not")
	}
}

// What cannot work as a static pod is refused with a remedy, before anything is written.
func TestStaticPodRefusals(t *testing.T) {
	for name, x := range map[string]struct{ config, user, says string }{
		"a service account":      {"membership: {kubernetes: {}}", "", "set kubeconfig to kubelet's"},
		"no kubeconfig":          {"membership: {kubernetes: {kubeconfig: /srv/none}}", "", "create it"},
		"a kubeconfig that lies": {"membership: {kubernetes: {kubeconfig: /srv/kube/config}}", "client-certificate: /srv/none.crt", "none.crt"},
		"a program":              {"membership: {kubernetes: {kubeconfig: /srv/kube/config}}", "exec: {apiVersion: client.authentication.k8s.io/v1, command: aws}", "name another kubeconfig"},
		"a broken configuration": {"memberships: {}", "", "memberships"},
	} {
		b := newBox(t, StaticPod)
		write(t, filepath.Join(b.o.Root, config.DefaultPath), x.config)
		b.kubeconfig("/srv/kube/config", x.user)
		before := b.tree()
		err := Install(t.Context(), b.o)
		if !errors.Is(err, ErrUnfit) || !strings.Contains(err.Error(), x.says) {
			t.Errorf("%s: %v", name, err)
		}
		if left := b.tree(); len(left) != len(before) {
			t.Errorf("%s: something was written: %v", name, left)
		}
	}
}
