package kubeapi

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/version"

	"edgemesh/test/repo"
)

const (
	// startTime bounds the start of one program, on a busy machine.
	startTime = 120 * time.Second
	// Namespace is where the manifests put the service accounts.
	Namespace = "edgemesh"
)

// Cluster is one etcd and one kube-apiserver.
type Cluster struct {
	URL  string // https://127.0.0.1:PORT
	Dir  string // everything it writes, logs among it
	Bin  string // programs
	Root string // of the source tree
	// Version is the one that the chart is rendered for. It is the API server's, which EDGEMESH_K8S_VERSION chooses (v1.35.4), unless
	// EDGEMESH_K8S_CHART names another one: that is a cluster whose control plane was upgraded before the chart.
	Version string

	pki       *pki
	ports     [3]int // API, etcd client, etcd peer
	etcd, api *process
	admin     *http.Client

	controllers, scheduler *process
}

// New starts a cluster in dir. Stop it also when New failed.
func New(dir string) (*Cluster, error) {
	root, err := repo.Root()
	if err != nil {
		return &Cluster{}, err
	}
	c := &Cluster{Dir: dir, Root: root}
	if err := c.build(); err != nil {
		return c, err
	}
	if c.pki, err = newPKI(dir); err != nil {
		return c, err
	}
	if err := c.pki.issue("admin", pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}},
		time.Now().Add(-time.Hour)); err != nil {
		return c, err
	}
	if c.ports, err = freePorts(); err != nil {
		return c, err
	}
	c.URL = fmt.Sprintf("https://127.0.0.1:%d", c.ports[0])
	if err := c.Kubeconfig("admin.conf", "admin", c.URL); err != nil {
		return c, err
	}
	if c.admin, err = c.httpClient("admin"); err != nil {
		return c, err
	}
	if err := c.StartEtcd(); err != nil {
		return c, err
	}
	if err := c.StartAPI(); err != nil {
		return c, err
	}
	return c, c.ask()
}

// build has the programs of EDGEMESH_K8S_VERSION.
func (c *Cluster) build() error {
	out, err := output(exec.Command(filepath.Join(c.Root, "test/kubeapi/build.sh")))
	if err != nil {
		return fmt.Errorf("build Kubernetes: %w", err)
	}
	c.Bin = strings.TrimSpace(out)
	return nil
}

// ask has the API server say its version.
func (c *Cluster) ask() error {
	var v struct{ GitVersion string }
	err := c.Do(http.MethodGet, "/version", nil, &v)
	c.Version = cmp.Or(os.Getenv("EDGEMESH_K8S_CHART"), v.GitVersion)
	return err
}

// Upgrade replaces the API server by that of EDGEMESH_K8S_VERSION as it is now, on the same data.
func (c *Cluster) Upgrade() error {
	if err := c.build(); err != nil {
		return err
	}
	c.StopAPI()
	if err := c.StartAPI(); err != nil {
		return err
	}
	return c.ask()
}

// freePorts finds ports that are free now. They are below those that the kernel gives to
// connections (ip_local_port_range, from 32768): nobody's connection takes one while its
// server is down.
func freePorts() (ports [3]int, err error) {
	const first, last, tries = 20000, 31999, 100
	for i := range ports {
		var l net.Listener
		for range tries {
			ports[i] = first + rand.IntN(last-first+1)
			if l, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", ports[i])); err == nil {
				break
			}
		}
		if err != nil {
			return ports, err
		}
		defer l.Close()
	}
	return ports, nil
}

// StartEtcd starts etcd on its data, or on nothing after WipeEtcd.
func (c *Cluster) StartEtcd() error {
	client, peer := fmt.Sprintf("http://127.0.0.1:%d", c.ports[1]), fmt.Sprintf("http://127.0.0.1:%d", c.ports[2])
	if Kine() {
		return c.startKine(client)
	}
	var err error
	c.etcd, err = c.start("etcd", "--name", "default", "--data-dir", c.etcdData(),
		"--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
		"--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer,
		"--unsafe-no-fsync", "--log-level", "warn")
	if err != nil {
		return err
	}
	return c.etcd.wait(func() error { return ok(http.DefaultClient, client+"/health") })
}

// Kine says that kine keeps the clusters' data, as in k3s, by EDGEMESH_K8S_STORE=kine. Its history cannot be compacted by hand.
func Kine() bool { return os.Getenv("EDGEMESH_K8S_STORE") == "kine" }

// startKine starts what k3s has in place of etcd, with SQLite, on the same directory.
func (c *Cluster) startKine(client string) error {
	out, err := output(exec.Command(filepath.Join(c.Root, "build/tool.sh"), "kine"))
	if err != nil {
		return fmt.Errorf("build kine: %w", err)
	}
	if err := os.MkdirAll(c.etcdData(), 0o700); err != nil {
		return err
	}
	c.etcd, err = c.start(strings.TrimSpace(out), "--listen-address", client, "--metrics-bind-address", "0", "--endpoint",
		"sqlite://"+filepath.Join(c.etcdData(), "state.db")+"?_journal_mode=WAL&_busy_timeout=30000&_synchronous=NORMAL&_txlock=immediate&_stmt_cache_size=20&cache=shared")
	if err != nil {
		return err
	}
	return c.etcd.wait(func() error {
		conn, err := net.Dial("tcp", strings.TrimPrefix(client, "http://"))
		if err == nil {
			err = conn.Close()
		}
		return err
	})
}

func (c *Cluster) etcdData() string { return filepath.Join(c.Dir, "etcd") }

// StopEtcd kills etcd.
func (c *Cluster) StopEtcd() { c.etcd.kill() }

// WipeEtcd removes all data; etcd must be stopped.
func (c *Cluster) WipeEtcd() error { return os.RemoveAll(c.etcdData()) }

// BackupEtcd copies the data to name below Dir; etcd must be stopped.
func (c *Cluster) BackupEtcd(name string) error {
	return os.CopyFS(filepath.Join(c.Dir, name), os.DirFS(c.etcdData()))
}

// RestoreEtcd puts a backup back; etcd must be stopped.
func (c *Cluster) RestoreEtcd(name string) error {
	if err := c.WipeEtcd(); err != nil {
		return err
	}
	if err := os.CopyFS(c.etcdData(), os.DirFS(filepath.Join(c.Dir, name))); err != nil {
		return err
	}
	return os.Chmod(c.etcdData(), 0o700)
}

// Compact drops etcd's history before now.
func (c *Cluster) Compact() error {
	base := fmt.Sprintf("http://127.0.0.1:%d/v3/kv/", c.ports[1])
	var got struct {
		Header struct {
			Revision string `json:"revision"`
		} `json:"header"`
	}
	if err := postJSON(http.DefaultClient, base+"range", map[string]string{"key": "AA=="}, &got); err != nil {
		return err
	}
	var ignored struct{}
	return postJSON(http.DefaultClient, base+"compaction",
		map[string]any{"revision": got.Header.Revision, "physical": true}, &ignored)
}

// StartAPI starts kube-apiserver.
func (c *Cluster) StartAPI() error {
	p := c.pki.path
	var err error
	c.api, err = c.start("kube-apiserver", "--etcd-servers", fmt.Sprintf("http://127.0.0.1:%d", c.ports[1]),
		"--bind-address", "127.0.0.1", "--secure-port", fmt.Sprint(c.ports[0]), "--advertise-address", "127.0.0.1",
		"--endpoint-reconciler-type", "none", "--service-cluster-ip-range", "10.96.0.0/16",
		"--authorization-mode", "Node,RBAC", "--enable-admission-plugins", "NodeRestriction",
		"--disable-admission-plugins", "ServiceAccount", // pods here only give tokens something to be bound to
		"--client-ca-file", p("ca.crt"), "--tls-cert-file", p("apiserver.crt"), "--tls-private-key-file", p("apiserver.key"),
		"--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", p("sa.pub"),
		"--service-account-signing-key-file", p("sa.key"), "--profiling=false")
	if err != nil {
		return err
	}
	return c.api.wait(func() error { return ok(c.admin, c.URL+"/readyz") })
}

// StopAPI kills kube-apiserver.
func (c *Cluster) StopAPI() { c.api.kill(); c.admin.CloseIdleConnections() }

// StartControllers starts kube-controller-manager with only these controllers.
func (c *Cluster) StartControllers(names ...string) error {
	const program = "kube-controller-manager"
	path := program
	if out, err := output(exec.Command(filepath.Join(c.Root, "test/kubeapi/build.sh"), program)); err != nil {
		if path = c.newer(program); path == "" { // 1.29's modules are not all served
			return fmt.Errorf("build %s: %w: %s", program, err, out)
		}
		fmt.Fprintf(os.Stderr, "%s of %s cannot be built: %s runs instead\n", program, filepath.Base(c.Bin), path)
	}
	var err error
	c.controllers, err = c.start(path, "--kubeconfig", filepath.Join(c.Dir, "admin.conf"),
		"--leader-elect=false", "--controllers", strings.Join(names, ","), "--secure-port", "0",
		"--cluster-signing-cert-file", c.pki.path("ca.crt"), "--cluster-signing-key-file", c.pki.path("ca.key"),
		"--allocate-node-cidrs", "--cluster-cidr", "10.244.0.0/16")
	return err
}

// newer is the path of a program of the next version for which it is built, "" for none.
func (c *Cluster) newer(program string) (path string) {
	all, _ := filepath.Glob(filepath.Join(filepath.Dir(c.Bin), "k8s-v*", program))
	var best *version.Version
	for _, p := range all {
		v, err := version.ParseGeneric(strings.TrimPrefix(filepath.Base(filepath.Dir(p)), "k8s-"))
		if err == nil && c.Before(v.String()) && (best == nil || v.LessThan(best)) {
			best, path = v, p
		}
	}
	return path
}

// StartScheduler starts kube-scheduler.
func (c *Cluster) StartScheduler() error {
	out, err := output(exec.Command(filepath.Join(c.Root, "test/kubeapi/build.sh"), "kube-scheduler"))
	if err != nil {
		return fmt.Errorf("build kube-scheduler: %w: %s", err, out)
	}
	conf := filepath.Join(c.Dir, "admin.conf")
	c.scheduler, err = c.start("kube-scheduler", "--kubeconfig", conf, "--authentication-kubeconfig", conf, "--authorization-kubeconfig", conf,
		"--leader-elect=false", "--secure-port", "0")
	return err
}

// StopScheduler kills kube-scheduler.
func (c *Cluster) StopScheduler() { c.scheduler.kill() }

// StopControllers kills kube-controller-manager.
func (c *Cluster) StopControllers() { c.controllers.kill() }

// Stop ends everything.
func (c *Cluster) Stop() {
	if c.controllers != nil {
		c.StopControllers()
	}
	if c.api != nil {
		c.StopAPI()
	}
	if c.etcd != nil {
		c.StopEtcd()
	}
}

// Logs is the path of a program's log.
func (c *Cluster) Logs(program string) string { return filepath.Join(c.Dir, program+".log") }

// Kubectl runs kubectl as administrator and returns its stdout.
func (c *Cluster) Kubectl(args ...string) (string, error) { return c.KubectlStdin("", args...) }

// KubectlStdin is Kubectl with input.
func (c *Cluster) KubectlStdin(in string, args ...string) (string, error) {
	cmd := exec.Command(filepath.Join(c.Bin, "kubectl"), append([]string{
		"--kubeconfig", filepath.Join(c.Dir, "admin.conf"),
	}, args...)...)
	cmd.Env = Environ("HOME=" + c.Dir)
	cmd.Stdin = strings.NewReader(in)
	return output(cmd)
}

// Kubeconfig writes a kubeconfig for a certificate of the PKI.
func (c *Cluster) Kubeconfig(file, cert, server string) error {
	return c.writeKubeconfig(file, server,
		fmt.Sprintf("{client-certificate: %s, client-key: %s}", c.pki.path(cert+".crt"), c.pki.path(cert+".key")))
}

// TokenKubeconfig writes a kubeconfig for a token in a file, as pods have it.
func (c *Cluster) TokenKubeconfig(file, tokenFile, server string) error {
	return c.writeKubeconfig(file, server, fmt.Sprintf("{tokenFile: %s}", tokenFile))
}

func (c *Cluster) writeKubeconfig(file, server, user string) error {
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: u, user: %s}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, server, c.pki.path("ca.crt"), user)
	return os.WriteFile(filepath.Join(c.Dir, file), []byte(text), 0o600)
}

// NodeCertificate issues the certificate of a kubelet, good from notBefore on, and
// returns its name.
func (c *Cluster) NodeCertificate(node string, notBefore time.Time) (string, error) {
	// A name of its own: client-go keeps connections by the certificate's path.
	name := fmt.Sprintf("node-%s-%d", node, notBefore.UnixNano())
	return name, c.pki.issue(name,
		pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}}, notBefore)
}

// Files are those of a certificate and its key.
func (c *Cluster) Files(cert string) (crt, key string) {
	return c.pki.path(cert + ".crt"), c.pki.path(cert + ".key")
}

// GroupCertificate issues the certificate of a user in the nodes' group whose name
// is not a node's.
func (c *Cluster) GroupCertificate(name string) error {
	return c.pki.issue(name, pkix.Name{CommonName: name, Organization: []string{"system:nodes"}},
		time.Now().Add(-time.Hour))
}

// ServiceAccountCertificate issues a certificate in the name of a service account, to act as one whose namespace does
// not exist.
func (c *Cluster) ServiceAccountCertificate(namespace, name string) error {
	return c.pki.issue(name, pkix.Name{CommonName: "system:serviceaccount:" + namespace + ":" + name}, time.Now().Add(-time.Hour))
}

func (c *Cluster) httpClient(cert string) (*http.Client, error) {
	pair, err := tls.LoadX509KeyPair(c.pki.path(cert+".crt"), c.pki.path(cert+".key"))
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AddCert(c.pki.cert)
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}}, ForceAttemptHTTP2: true,
	}}, nil
}

// process is a program that runs.
type process struct {
	cmd  *exec.Cmd
	log  string
	done chan struct{} // closed when it ended
}

func (c *Cluster) start(program string, args ...string) (*process, error) {
	log, err := os.OpenFile(c.Logs(filepath.Base(program)), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	if !filepath.IsAbs(program) {
		program = filepath.Join(c.Bin, program)
	}
	p := &process{cmd: exec.Command(program, args...), log: log.Name(), done: make(chan struct{})}
	p.cmd.Env, p.cmd.Stdout, p.cmd.Stderr = Environ(), log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // the test may be killed
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // Pdeathsig is of the thread that starts it
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait()
		}
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	return p, nil
}

// wait returns once good says nil, or with an error when the program ended or
// took too long.
func (p *process) wait(good func() error) error {
	deadline := time.Now().Add(startTime)
	for {
		err := good()
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s ended, see %s", p.cmd.Path, p.log)
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s is not ready: %w, see %s", p.cmd.Path, err, p.log)
		}
	}
}

func (p *process) kill() {
	select {
	case <-p.done:
	default:
		_ = p.cmd.Process.Kill() // it may just have ended
		<-p.done
	}
}

func ok(h *http.Client, url string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := h.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	return nil
}

// output runs cmd and returns its stdout; the error has its stderr.
func output(cmd *exec.Cmd) (string, error) {
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, errs.String())
	}
	return out.String(), nil
}
