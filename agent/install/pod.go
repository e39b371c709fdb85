package install

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	ma "github.com/multiformats/go-multiaddr"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"edgemesh/internal/config"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/manifests"
)

// distribution says where a kind of cluster keeps its files on a node.
type distribution struct {
	kubeconfig string // kubelet's
	podDir     string // kubelet's static pods
	// credentials are the files that the kubeconfig will name once the host is a node, or
	// the directory in which they are rotated.
	credentials []string
	kind        string // of credentials
	server      string // of an API without credentials, in place of a kubeconfig
	off         bool   // that API is not turned on
	token       bool   // that API requires a token, which only the cluster's own pods have
}

// kubeadm is the layout of kubeadm and of most other distributions.
var kubeadm = distribution{
	kubeconfig: "/etc/kubernetes/kubelet.conf", podDir: "/etc/kubernetes/manifests",
	credentials: []string{"/var/lib/kubelet/pki"}, kind: "Directory",
}

// k3s keeps everything below one directory (docs.k3s.io, "CLI tools", "Advanced options").
var k3s = distribution{
	kubeconfig: "/var/lib/rancher/k3s/agent/kubelet.kubeconfig",
	podDir:     "/var/lib/rancher/k3s/agent/pod-manifests",
	credentials: []string{"/var/lib/rancher/k3s/agent/client-kubelet.crt", "/var/lib/rancher/k3s/agent/client-kubelet.key",
		"/var/lib/rancher/k3s/agent/server-ca.crt"}, kind: "File",
}

// kubeEdge has no kubeconfig: agents of an edge use the local API. The directory is edgecore's default.
var kubeEdge = distribution{server: client.MetaServer, podDir: "/etc/kubeedge/manifests"}

const (
	// edgeCore is edgecore's configuration, by which an edge is recognised.
	edgeCore = "/etc/kubeedge/config/edgecore.yaml"
	// edgeCertificates has edgecore's certificate and key.
	edgeCertificates = "/etc/kubeedge/certs"
)

// distribution recognises the host's distribution by edgecore's configuration, or kubelet's kubeconfig.
func (i *installer) distribution() distribution {
	if exists(i.Path(edgeCore)) {
		return i.edgeOf()
	}
	if !exists(i.Path(kubeadm.kubeconfig)) && (exists(i.Path(k3s.kubeconfig)) || i.o.Kubeconfig == k3s.kubeconfig) {
		return k3s
	}
	return kubeadm
}

// edgeOf is the layout of an edge, whose configuration may name another directory of static pods, or require tokens.
func (i *installer) edgeOf() distribution {
	d := kubeEdge
	var c struct {
		FeatureGates map[string]bool
		Modules      struct {
			Edged struct {
				TailoredKubeletConfig struct{ StaticPodPath string }
			}
			MetaManager struct {
				MetaServer struct{ Enable bool }
			}
		}
	}
	text, err := os.ReadFile(i.Path(edgeCore))
	if err == nil {
		err = yaml.Unmarshal(text, &c)
	}
	if err != nil {
		i.Todo = append(i.Todo, fmt.Sprintf("look whether %s is edgecore's configuration: %v", edgeCore, err))
		return d
	}
	d.off, d.token = !c.Modules.MetaManager.MetaServer.Enable, c.FeatureGates["requireAuthorization"]
	d.podDir = cmp.Or(c.Modules.Edged.TailoredKubeletConfig.StaticPodPath, d.podDir)
	return d
}

// checkMetaServer refuses an agent that MetaServer would refuse, and notes for the operator if MetaServer is off; another
// membership needs neither. The error wraps ErrUnfit.
func (i *installer) checkMetaServer(configuration string) error {
	cfg, err := i.parse([]byte(configuration))
	if err != nil || !i.usesMetaServer(cfg.Membership.Kubernetes) {
		return nil // whoever needs the configuration reports the error
	}
	if i.host.token && i.o.Form != DaemonSet {
		return fmt.Errorf("%w: requireAuthorization is on in %s, so MetaServer wants a token, which only pods of the cluster's DaemonSet have: use that; "+
			"or name another membership, with --kubeconfig, --membership or, if it exists, in %s", ErrUnfit, edgeCore, config.DefaultPath)
	}
	if i.host.off {
		i.Todo = append(i.Todo, fmt.Sprintf("set modules.metaManager.metaServer.enable: true in %s, and modules.dynamicController.enable: true in cloudcore's "+
			"configuration: the agent reads the members from MetaServer", edgeCore))
	}
	return nil
}

// usesMetaServer reports whether an agent's API is MetaServer, by its address or because it is found on an edge.
func (i *installer) usesMetaServer(k *config.Kubernetes) bool {
	if k == nil || k.Kubeconfig != "" {
		return false
	}
	u, err := url.Parse(cmp.Or(k.Server, i.host.server))
	return err == nil && client.IsMetaServer(u)
}

// pod is the static pod for an agent with this configuration. The error wraps ErrUnfit if
// a static pod cannot work.
func (i *installer) pod(configuration string) (string, error) {
	// In the pod the node has kubelet's name; this machine may be a different one.
	cfg, err := i.parse([]byte(configuration))
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrUnfit, err)
	}
	m := mounts{i: i}
	m.add("config", filepath.Dir(config.DefaultPath), "Directory", true)
	m.add("state", cfg.StateDir, "DirectoryOrCreate", false)
	m.add("runtime", cfg.RuntimeDir, "DirectoryOrCreate", false)
	m.add("cni-conf", cfg.CNIConfDir, "DirectoryOrCreate", false)
	m.add("cni-bin", cfg.CNIBinDir, "DirectoryOrCreate", false)
	if cfg.CNIDataDir == config.DefaultCNIDataDir {
		m.add("cni-data", "/var/lib/cni", "DirectoryOrCreate", false) // also other plugins' records
	} else {
		m.add("cni-data", cfg.CNIDataDir, "DirectoryOrCreate", false)
	}
	if cfg.JoinSecretFile != "" {
		// The directory, because a mounted file would not follow a rename.
		m.add("join-secret", filepath.Dir(cfg.JoinSecretFile), "Directory", true)
	}
	if cfg.ProxyUser != "" {
		m.add("proxy-credentials", filepath.Dir(cfg.ProxyUser), "Directory", true)
	}
	if k := cfg.Membership.Kubernetes; k != nil {
		err = m.kubernetes(*k)
		m.certificate(*k)
	} else {
		// The directory, because a mounted file would not follow a rename.
		m.add("membership", filepath.Dir(cfg.Membership.File), "DirectoryOrCreate", true)
	}
	if err != nil {
		return "", fmt.Errorf("%w: %w; or use --form %s", ErrUnfit, err, Systemd)
	}
	return manifests.AgentPod(manifests.Pod{Image: i.o.Image, Health: cfg.MetricsAddress, LowPort: lowPort(cfg), Mounts: m.list}), nil
}

// lowPort reports whether the agent is to listen on a privileged port.
func lowPort(cfg config.Config) bool {
	low := func(text string) bool {
		port, err := strconv.Atoi(text)
		return err == nil && port > 0 && port < 1024
	}
	_, metrics, _ := net.SplitHostPort(cfg.MetricsAddress) // checked by the configuration
	return low(metrics) || slices.ContainsFunc(cfg.Listen, func(a ma.Multiaddr) bool { return low(a[1].Value()) })
}

// mounts are what the pod sees of the host.
type mounts struct {
	i           *installer
	list        []manifests.Mount
	credentials int // of list
}

// add mounts a path, unless it is "" or already mounted.
func (m *mounts) add(name, path, kind string, readOnly bool) {
	covered := func(o manifests.Mount) bool {
		within := path == o.Path || strings.HasPrefix(path, strings.TrimSuffix(o.Path, "/")+"/")
		return within && (readOnly || !o.ReadOnly)
	}
	if path == "" || slices.ContainsFunc(m.list, covered) {
		return
	}
	m.list = append(m.list, manifests.Mount{Name: name, Path: path, Type: kind, ReadOnly: readOnly})
}

// kubernetes mounts a kubeconfig and the files it names.
func (m *mounts) kubernetes(k config.Kubernetes) error {
	if k.Kubeconfig == "" {
		if k.Server == "" {
			return fmt.Errorf("membership.kubernetes in %s names no kubeconfig, and a static pod has no service account: set kubeconfig to kubelet's (%s)",
				config.DefaultPath, m.i.host.kubeconfig)
		}
		return nil
	}
	path := m.i.Path(k.Kubeconfig)
	kube, err := client.LoadKubeconfig(path)
	if d := m.i.host; errors.Is(err, fs.ErrNotExist) && k.Kubeconfig == d.kubeconfig {
		m.add("kubeconfig", k.Kubeconfig, "File", true)
		for n, f := range d.credentials {
			m.add(fmt.Sprintf("credentials-%d", n+1), f, d.kind, true)
		}
		return nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("kubeconfig %s does not exist, so the files it names are unknown: create it, then install", k.Kubeconfig)
	}
	if err != nil {
		return fmt.Errorf("kubeconfig %s: %w", k.Kubeconfig, err)
	}
	files, err := credentials(kube)
	if err != nil {
		return fmt.Errorf("kubeconfig %s: %w", k.Kubeconfig, err)
	}
	if err := m.file("kubeconfig", k.Kubeconfig); err != nil {
		return err
	}
	for _, f := range files {
		if !filepath.IsAbs(f) {
			f = filepath.Join(filepath.Dir(k.Kubeconfig), f)
		}
		if err := m.file("", f); err != nil {
			return fmt.Errorf("kubeconfig %s names an unusable file: %w", k.Kubeconfig, err)
		}
	}
	return nil
}

// certificate mounts what proves to a controller which node this is: the certificate that agent.yaml names, or where MetaServer
// is the API, which only lets nodes read, edgecore's. Directories, because a mounted file would not follow its replacement.
func (m *mounts) certificate(k config.Kubernetes) {
	switch {
	case k.NodeCertificate != "":
		m.add("node-certificate", filepath.Dir(k.NodeCertificate), "DirectoryOrCreate", true)
		if k.NodeKey != "" {
			m.add("node-key", filepath.Dir(k.NodeKey), "DirectoryOrCreate", true)
		}
	case m.i.usesMetaServer(&k):
		m.add("node-certificate", edgeCertificates, "DirectoryOrCreate", true)
	}
	if m.i.usesMetaServer(&k) { // which says where cloudcore is
		m.add("edgecore", filepath.Dir(edgeCore), "DirectoryOrCreate", true)
	}
}

// file mounts a file or, if it is a link that is replaced when certificates are rotated,
// the directories of link and target.
func (m *mounts) file(name, path string) error {
	if before := len(m.list); name == "" {
		m.credentials++
		name = fmt.Sprintf("credentials-%d", m.credentials)
		defer func() {
			if len(m.list) == before { // it was already mounted
				m.credentials--
			}
		}()
	}
	fi, err := os.Lstat(m.i.Path(path))
	if err != nil {
		return err
	}
	if fi.Mode()&fs.ModeSymlink == 0 {
		m.add(name, path, "File", true)
		return nil
	}
	m.add(name, filepath.Dir(path), "Directory", true)
	to, err := os.Readlink(m.i.Path(path))
	if err != nil {
		return err
	}
	if !filepath.IsAbs(to) {
		to = filepath.Join(filepath.Dir(path), to)
	}
	m.add(name+"-target", filepath.Dir(to), "Directory", true)
	return nil
}

// credentials are the files that a kubeconfig names for its current context.
func credentials(k *clientcmdapi.Config) ([]string, error) {
	cluster, user, err := client.Current(k)
	if err != nil {
		return nil, err
	}
	if user.Exec != nil || user.AuthProvider != nil {
		return nil, errors.New("its user's credentials come from a program on the host, which the image does not contain: name another kubeconfig")
	}
	var out []string
	add := func(path string, data []byte) {
		if path != "" && len(data) == 0 { // data takes precedence
			out = append(out, path)
		}
	}
	add(cluster.CertificateAuthority, cluster.CertificateAuthorityData)
	add(user.ClientCertificate, user.ClientCertificateData)
	add(user.ClientKey, user.ClientKeyData)
	add(user.TokenFile, nil)
	return out, nil
}

// installPod writes the static pod; kubelet starts it.
func (i *installer) installPod(pod string) error {
	dir := cmp.Or(i.o.PodDir, i.host.podDir)
	if err := i.Put(filepath.Join(dir, podName), []byte(pod), 0o600); err != nil {
		return err
	}
	i.Todo = append(i.Todo,
		"if kubelet cannot pull the image, import it: ctr -n k8s.io images import edgemesh-agent-linux-ARCH.tar",
		"in the cluster: kubectl label node NODE network.edgemesh.io/agent=static-pod")
	return nil
}
