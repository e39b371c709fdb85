package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"edgemesh/internal/cli"
	"edgemesh/internal/keytest"
	"edgemesh/internal/self"
	"edgemesh/manifests"
	"edgemesh/test/fair"
	"edgemesh/tunnel/p2p/base/stun"
	"edgemesh/tunnel/p2p/carrier/socket"
)

// A relay that runs says which address a server has that no interface has; one with a public address asks nobody.
func TestPeerSaysTheAddress(t *testing.T) {
	t.Parallel()
	c, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go stun.Serve(t.Context(), c, netip.AddrPort{})
	for _, x := range []struct{ iface, peer, want, fails string }{
		{"10.0.0.5", c.LocalAddr().String(), "127.0.0.1", ""},
		{"5.5.5.5", "nobody.invalid", "", ""},
		{"10.0.0.5", "nobody.invalid", "", "--peer nobody.invalid: "},
		{"10.0.0.5", "", "", ""},
	} {
		i := &installation{peer: x.peer, ifaces: func() ([]ifaceAddr, error) { return []ifaceAddr{{ip: netip.MustParseAddr(x.iface)}}, nil }}
		err := i.ask(t.Context())
		if got := strings.Join(i.announce, " "); got != x.want || (err != nil) != (x.fails != "") || err != nil && !strings.HasPrefix(err.Error(), x.fails) {
			t.Errorf("%+v: announces %q, %v", x, got, err)
		}
	}
}

// box is a host in a directory, whose systemctl starts the relay as the unit does.
type box struct {
	*installation
	t     *testing.T
	out   bytes.Buffer
	log   logBuffer
	calls []string          // of systemctl
	says  map[string]string // what programs print
	port  int               // where the relay listens
	stop  func()
}

func newBox(t *testing.T) *box {
	t.Helper()
	b := &box{t: t, says: map[string]string{}, stop: func() {}}
	for b.port == 0 { // the kernel gives programs none of these
		port := 10000 + rand.IntN(20000)
		if l, err := net.Listen("tcp", fmt.Sprintf(":%d", port)); err == nil {
			b.port = port
			l.Close()
		}
	}
	root := t.TempDir()
	b.installation = &installation{
		binary:    filepath.Join(root, "scp", program),
		systemctl: b.control,
		output: func(_ context.Context, name string, args ...string) string {
			return b.says[strings.Join(append([]string{name}, args...), " ")]
		},
		ifaces: func() ([]ifaceAddr, error) { return []ifaceAddr{{ip: netip.MustParseAddr("5.5.5.5")}}, nil },
	}
	b.Root, b.Out = root, &b.out
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	b.put(0o755, "/scp/"+program, "the relay's binary")
	b.put(0o644, sysctls+"rmem_max", "212992\n")
	b.put(0o644, sysctls+"wmem_max", "99999999\n")
	b.put(0o644, available, "reno cubic bbr\n")
	for _, dir := range []string{"/etc/systemd/system", "/etc/sysctl.d", "/etc/modules-load.d", "/usr/local/bin", "/var/lib"} { // what every host has
		if err := os.MkdirAll(root+dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	b.put(0o644, "/etc/edgemesh/cluster.yaml", clusterYAML())
	t.Cleanup(func() {
		b.stop()
		if t.Failed() {
			t.Logf("%s\nlog of the relay:\n%s", &b.out, &b.log)
		}
	})
	return b
}

func (b *box) put(mode fs.FileMode, path, text string) {
	b.t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(b.Root+path), 0o755), os.WriteFile(b.Root+path, []byte(text), mode)); err != nil {
		b.t.Fatal(err)
	}
}

func (b *box) text(path string) string {
	data, _ := os.ReadFile(b.Root + path)
	return string(data)
}

// control is systemctl.
func (b *box) control(_ context.Context, args ...string) error {
	b.calls = append(b.calls, strings.Join(args, " "))
	switch args[0] {
	case "disable", "restart":
		b.stop()
		b.stop = func() {}
	}
	if args[0] != "restart" {
		return nil
	}
	text := b.text(defaultConfig)
	for _, dir := range []string{"/etc/edgemesh", defaultStateDir} {
		text = strings.ReplaceAll(text, dir, b.Root+dir)
	}
	conf := filepath.Join(b.t.TempDir(), "relay.yaml")
	writeFile(b.t, conf, text+fmt.Sprintf("stateDir: %s\n", b.Root+defaultStateDir))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan int, 1)
	go func() { done <- cli.Execute(ctx, newRoot(), []string{"run", "--config", conf}, io.Discard, &b.log) }()
	b.stop = func() { cancel(); <-done }
	return nil
}

// local is a configuration for a relay that the test can start.
func (b *box) local() string {
	return fmt.Sprintf("# mine\nlisten: [/ip4/127.0.0.1/tcp/%d] # one\nmetricsAddress: \"\"\nmembership:\n  file: /etc/edgemesh/cluster.yaml\n# and a last word\n", b.port)
}

func (b *box) run() error {
	b.out.Reset()
	b.calls, b.Todo = nil, nil
	return b.install(b.t.Context())
}

func (b *box) must(words ...string) {
	b.t.Helper()
	if err := b.run(); err != nil {
		b.t.Fatal(err)
	}
	b.said(words...)
}

func (b *box) said(words ...string) {
	b.t.Helper()
	for _, w := range words {
		if !strings.Contains(b.out.String(), w) {
			b.t.Errorf("did not say %q:\n%s", w, &b.out)
		}
	}
}

func (b *box) tree() map[string]string {
	b.t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(b.Root, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			out[strings.TrimPrefix(p, b.Root)] = b.text(strings.TrimPrefix(p, b.Root))
		}
		return err
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return out
}

func TestInstallComesAndGoes(t *testing.T) {
	b := newBox(t)
	b.put(0o644, defaultConfig, b.local())
	before := b.tree()
	b.announce = []string{"203.0.113.5"}

	b.Dry = true
	b.must("kept     "+defaultConfig+", except for announce", "to write "+unitPath, "to write "+defaultConfig)
	if !maps.Equal(b.tree(), before) || len(b.calls) > 0 {
		t.Fatalf("--dry-run did something: %v", b.calls)
	}
	b.Dry = false

	b.must("started  "+unitName, fmt.Sprintf("/ip4/203.0.113.5/tcp/%d/p2p/12D3KooW", b.port), "in cluster.yaml of every node and relay:\n  relays: [/ip4/203.0.113.5/tcp/")
	if !slices.Equal(b.calls, []string{"daemon-reload", "enable " + unitName, "restart " + unitName}) {
		t.Errorf("systemctl: %v", b.calls)
	}
	key := b.text(defaultStateDir + "/identity.key")
	for path, want := range map[string]string{
		binPath:       "the relay's binary",
		unitPath:      manifests.RelayUnit,
		defaultConfig: b.local() + "announce: [/ip4/203.0.113.5]\n",
		"/etc/modules-load.d/edgemesh-relay.conf": "tcp_bbr\n",
		"/etc/sysctl.d/60-edgemesh-relay.conf":    fmt.Sprintf("net.core.rmem_max = %d\nnet.core.wmem_max = 99999999\n", socket.UDPBuffer),
		sysctls + "rmem_max":                      strconv.Itoa(socket.UDPBuffer),
		sysctls + "wmem_max":                      "99999999\n",
	} {
		if got := b.text(path); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	if key == "" {
		t.Error("no key")
	}

	b.announce = nil
	after := b.tree()
	b.says["systemctl show -p MainPID --value "+unitName] = "12\n" // its port is its own
	b.says["ss -Hlnp -A tcp sport = :"+strconv.Itoa(b.port)] = `LISTEN 0 4096 *:4470 *:* users:(("edgemesh-relay",pid=12,fd=6))`
	b.must("as is    "+unitPath, "as is    "+binPath, "kept     "+defaultConfig+"\n")
	if !maps.Equal(b.tree(), after) || !slices.Contains(b.calls, "start "+unitName) {
		t.Errorf("again: %v", b.calls)
	}
	b.put(0o755, "/scp/"+program, "a newer binary")
	b.must("written  " + binPath)
	if !slices.Contains(b.calls, "restart "+unitName) || b.text(defaultStateDir+"/identity.key") != key {
		t.Errorf("an upgrade: %v", b.calls)
	}

	b.out.Reset()
	if err := b.uninstall(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.said("stopped", "kept     "+defaultConfig)
	left := b.tree()
	for path := range before {
		delete(left, path)
	}
	if b.text(sysctls+"rmem_max") != "212992" || b.text(defaultStateDir+"/identity.key") != key {
		t.Errorf("left: %v", left)
	}
	for path := range left {
		if !strings.HasPrefix(path, defaultStateDir) || strings.HasSuffix(path, "install.json") {
			t.Errorf("left: %s", path)
		}
	}
	if err := b.uninstall(t.Context()); err == nil || !strings.Contains(err.Error(), "not installed by `edgemesh-relay install`") {
		t.Errorf("again: %v", err)
	}
	b.must()
	b.purge = true
	if err := b.uninstall(t.Context()); err != nil {
		t.Fatal(err)
	}
	if b.text(defaultStateDir+"/identity.key")+b.text(defaultConfig) != "" {
		t.Error("--purge has left the key or relay.yaml")
	}
}

// What relay.yaml has stays, byte by byte, except for the keys that flags give.
func TestConfiguration(t *testing.T) {
	const cluster, other = "12D3KooWMWsmWt1mKg4r79VRFm9KrEfwgqJ4YHJ3LJVUYfCbB48m", "12D3KooWGRUaYYqUqDcDuWPSRJUJ2ZxpjBnWwvDBXyjGX5CWyNL8"
	const secret, config = "/run/credentials/edgemesh-relay.service/join-secret", "/run/credentials/edgemesh-relay.service/kubeconfig"
	for name, c := range map[string]struct {
		have, membership, kubeconfig, secret string
		signers, announce                    []string
		yes                                  bool
		want, fails                          string
	}{
		"nothing":           {fails: "give --signer KEY, --membership FILE, --kubeconfig FILE or --join-secret-file FILE"},
		"a file":            {membership: "/m.yaml", want: "membership: {file: \"/m.yaml\"}\n"},
		"a kubeconfig":      {kubeconfig: "/k", want: "membership: {kubernetes: {kubeconfig: " + config + "}}\n"},
		"a secret":          {secret: "/s", want: "joinSecretFile: " + secret + "\n"},
		"a secret, a file":  {secret: "/s", membership: "/m", want: "membership: {file: \"/m\"}\njoinSecretFile: " + secret + "\n"},
		"both":              {membership: "/m", kubeconfig: "/k", fails: "exclude each other"},
		"a signer":          {signers: []string{cluster, other}, want: "signers: [" + cluster + ", " + other + "]\n"},
		"a signer replaces": {have: "membership: {kubernetes: {kubeconfig: " + config + "}}\njoinSecretFile: /s\nlog: {level: debug}\n", signers: []string{cluster}, yes: true, want: "log: {level: debug}\nsigners: [" + cluster + "]\n"},
		"a signer, unasked": {have: "membership: {file: /m}\n", signers: []string{cluster}, fails: "has membership, which these keys replace: nodes that they do not sign lose this relay"},
		"another signer":    {have: "signers: [" + other + "]\n", signers: []string{cluster}, fails: "give --signer " + other},
		"its successor":     {have: "signers: [" + other + "]\n", signers: []string{cluster}, yes: true, want: "signers: [" + cluster + "]\n"},
		"the example":       {have: "membership: {file: /etc/edgemesh/cluster.yaml}  # it\n", signers: []string{cluster}, want: "signers: [" + cluster + "]\n"},
		"no key":            {signers: []string{"12D3KooWx"}, fails: "signers[0]"},
		"a signer and more": {signers: []string{cluster}, secret: "/s", fails: "exclude each other"},
		"kept":              {have: "membership: {file: /a}\nlimits: {bandwidth: 5}\n", want: "membership: {file: /a}\nlimits: {bandwidth: 5}\n"},
		"a block":           {have: "# a\nmembership: # b\n  # c\n  file: /a\n\n# d\nannounce:\n- /ip4/192.0.2.1\nlog: {level: debug}\n", membership: "/m", announce: []string{"relay.example.org", "2001:db8::5", "/ip4/203.0.113.5/tcp/443"}, want: "# a\nmembership: {file: \"/m\"}\n\n# d\nannounce: [/dns/relay.example.org, /ip6/2001:db8::5, /ip4/203.0.113.5/tcp/443]\nlog: {level: debug}\n"},
		"without a newline": {have: "membership: {file: /a}", announce: []string{"203.0.113.5"}, want: "membership: {file: /a}\nannounce: [/ip4/203.0.113.5]\n"},
		"secret and API":    {have: "membership: {kubernetes: {kubeconfig: /k}}\n", secret: "/s", fails: "remove it, or membership.kubernetes"},
		"in braces":         {have: "{membership: {file: /a}}\n", announce: []string{"203.0.113.5"}, fails: defaultConfig},
		"broken":            {have: "membership: [\n", announce: []string{"203.0.113.5"}, fails: defaultConfig},
		"another state":     {have: "membership: {file: /a}\nstateDir: /srv/relay\n", fails: "stateDir: the unit lets the relay write to"},
		"no address":        {membership: "/m", announce: []string{"/tcp/1"}, fails: "announce[0]"},
	} {
		i := &installation{membership: c.membership, kubeconfig: c.kubeconfig, secret: c.secret, signers: c.signers, announce: c.announce, yes: c.yes}
		i.Root, i.Out = t.TempDir(), io.Discard
		if c.have != "" {
			if err := os.MkdirAll(i.Root+"/etc/edgemesh", 0o755); err != nil {
				t.Fatal(err)
			}
			writeFile(t, i.Root+defaultConfig, c.have)
		}
		got, _, err := i.configuration()
		if c.fails != "" && (err == nil || !strings.Contains(err.Error(), c.fails)) || c.fails == "" && (err != nil || got != c.want) {
			t.Errorf("%s: %v, %q, want %q %s", name, err, got, c.want, c.fails)
		}
	}
}

// What keeps a relay from its members is refused before anything is written, and says what to do.
func TestInstallRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(b *box)
		want string
	}{
		"no systemd":          {func(b *box) { b.systemctl = nil }, "edgemesh-relay run --config"},
		"no cluster.yaml":     {func(b *box) { b.membership = "/etc/edgemesh/none.yaml" }, "create cluster.yaml there"},
		"a broken one":        {func(b *box) { b.put(0o644, "/etc/edgemesh/cluster.yaml", "nodes: 5\n") }, "cluster.yaml: nodes"},
		"an unreadable one":   {func(b *box) { _ = os.Chmod(b.Root+"/etc/edgemesh/cluster.yaml", 0o600) }, "put it into /etc/edgemesh, with mode 0644"},
		"in a closed place":   {func(b *box) { _ = os.Chmod(b.Root+"/etc/edgemesh", 0o700) }, "/etc/edgemesh: the relay"},
		"in a home directory": {func(b *box) { b.put(0o644, "/home/me/c.yaml", clusterYAML()); b.membership = "/home/me/c.yaml" }, "cannot read it there"},
		"no kubeconfig":       {func(b *box) { b.kubeconfig = "/none" }, "--kubeconfig: stat"},
		"an open kubeconfig":  {func(b *box) { b.put(0o644, "/k", "x"); b.kubeconfig = "/k" }, "chmod 600"},
		"a short secret":      {func(b *box) { b.put(0o600, "/s", "abc\n"); b.secret = "/s" }, "--join-secret-file: "},
		"no public address": {func(b *box) {
			b.ifaces = func() ([]ifaceAddr, error) { return []ifaceAddr{{ip: netip.MustParseAddr("10.0.0.5")}}, nil }
		}, "no interface has a public address (/ip4/10.0.0.5/tcp/"},
		"a key that is broken": {func(b *box) { b.put(0o600, defaultStateDir+"/identity.key", "x") }, "identity"},
		"a port that is taken": {func(b *box) {
			l, err := net.Listen("tcp", fmt.Sprintf("0.0.0.0:%d", b.port))
			if err != nil {
				b.t.Fatal(err)
			}
			b.t.Cleanup(func() { l.Close() })
			b.says["ss -Hlnp -A tcp sport = :"+strconv.Itoa(b.port)] = `LISTEN 0 4096 *:4470 *:* users:(("nginx",pid=7,fd=6))`
		}, "tcp is taken, by nginx pid=7 fd=6: stop it"},
		"metrics' port": {func(b *box) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.t.Fatal(err)
			}
			b.t.Cleanup(func() { l.Close() })
			b.put(0o644, defaultConfig, strings.Replace(b.local(), `metricsAddress: ""`, "announce: [/ip4/5.5.5.5]\nmetricsAddress: "+l.Addr().String(), 1))
		}, "/tcp is taken, by another program: stop it, or set listen or metricsAddress"},
	} {
		b := newBox(t)
		b.put(0o644, defaultConfig, strings.ReplaceAll(b.local(), "127.0.0.1", "0.0.0.0"))
		c.do(b)
		before := b.tree()
		err := b.run()
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if !maps.Equal(b.tree(), before) || len(b.calls) > 0 {
			t.Errorf("%s: something was done: %v", name, b.calls)
		}
	}
}

// What does not stop it is left to do.
func TestInstallTells(t *testing.T) {
	b := newBox(t)
	b.Dry = true
	b.put(0o644, defaultConfig, strings.ReplaceAll(b.local(), "127.0.0.1", "0.0.0.0"))
	b.announce = []string{"10.0.0.5"}
	b.says["iptables-save"] = "*filter\n:INPUT DROP [0:0]\n-A INPUT -j ufw-user-input\nCOMMIT\n"
	b.must(fmt.Sprintf("open %d/tcp, which this host's firewall closes (iptables :INPUT DROP [0:0], and no rule accepts the port): ufw allow %[1]d/tcp", b.port),
		"10.0.0.5/tcp/"+strconv.Itoa(b.port)+", which is private")
}

// A relay that pins the cluster's key needs no file of it, and no key of its own.
func TestInstallWithASigner(t *testing.T) {
	b := newBox(t)
	b.put(0o644, defaultConfig, b.local())
	_, cluster := keytest.New(t)
	b.signers, b.yes = []string{cluster.String()}, true
	b.announce = []string{"203.0.113.5"}
	b.must("except for signers, membership, announce", "where kubectl works (without Kubernetes: `relays` in cluster.yaml):\n  kubectl edgemesh relay add /ip4/203.0.113.5/tcp/")
	own, err := self.PeerID("stateDir", b.Path(defaultStateDir))
	if err != nil {
		t.Fatal(err)
	}
	_ = b.control(t.Context(), "disable")
	b.signers = []string{own}
	if err := b.run(); err == nil || !strings.Contains(err.Error(), "this relay's own key") {
		t.Errorf("its own key: %v", err)
	}
}

// A package's program and unit stay; secrets come by drop-ins, and go with them.
func TestInstallBesideThePackage(t *testing.T) {
	b := newBox(t)
	b.put(0o644, packaged, "the package's")
	b.put(0o600, "/etc/edgemesh/secret", strings.Repeat("s", 40)+"\n")
	b.put(0o644, defaultConfig, b.local())
	b.announce, b.secret = []string{"203.0.113.5"}, "/etc/edgemesh/secret"
	if _, _, err := b.configuration(); err != nil {
		t.Fatal(err)
	}
	if err := b.load(); !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	if err := os.MkdirAll(b.Root+defaultStateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	drop := unitPath + ".d/join-secret.conf"
	if err := b.place(config{joinSecretFile: "x"}); err != nil || b.text(drop) != "[Service]\nLoadCredential=join-secret:/etc/edgemesh/secret\n" || b.text(binPath)+b.text(unitPath) != "" {
		t.Errorf("%v: %q", err, b.tree())
	}
	b.secret = ""
	if err := b.place(config{}); err != nil || b.text(drop) != "" {
		t.Errorf("%v: %q", err, b.text(drop))
	}
}

// A relay that does not listen is not reported as installed.
func TestInstallWaits(t *testing.T) {
	b := newBox(t)
	b.put(0o644, defaultConfig, b.local())
	b.announce = []string{"203.0.113.5"}
	b.says["journalctl -u "+unitName+" -n 3 -o cat"] = "out of luck\n"
	b.systemctl = func(_ context.Context, args ...string) error {
		if args[0] == "restart" {
			return errors.New("job failed")
		}
		return nil
	}
	if err := b.run(); err == nil || !strings.Contains(err.Error(), "job failed; its log ends with:\nout of luck") {
		t.Errorf("%v", err)
	}
	b.systemctl = func(context.Context, ...string) error { return nil }
	ctx, cancel := fair.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := b.install(ctx); err == nil || !regexp.MustCompile(`does not listen: journalctl`).MatchString(err.Error()) {
		t.Errorf("%v", err)
	}
}
