package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
	"github.com/spf13/cobra"

	"edgemesh/internal/cli"
	agent "edgemesh/internal/config"
	web "edgemesh/internal/endpoint"
	"edgemesh/internal/membership/kube"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/membership/source"
	"edgemesh/internal/placed"
	"edgemesh/internal/secretfile"
	"edgemesh/internal/self"
	"edgemesh/internal/wake"
	"edgemesh/internal/wording"
	"edgemesh/manifests"
	"edgemesh/relay/firewall"
	"edgemesh/tunnel/p2p/admission/join"
	underlay "edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/base/stun"
	"edgemesh/tunnel/p2p/carrier/socket"
)

// What an installation writes, and what it reads.
const (
	unitName    = "edgemesh-relay.service"
	unitPath    = "/etc/systemd/system/" + unitName
	binPath     = "/usr/local/bin/" + program
	packaged    = "/usr/lib/systemd/system/" + unitName
	credentials = "/run/credentials/" + unitName + "/"
	sysctls     = "/proc/sys/net/core/"
	available   = "/proc/sys/net/ipv4/tcp_available_congestion_control"
	recordFile  = "/etc/edgemesh/relay-install.json"
)

// formerWay is what to do on a relay that has credentials of the API.
const formerWay = "the kubeconfig's credentials end, and the next release takes none. Two lines replace it: " +
	"`kubectl edgemesh relay add` where kubectl works, and here what it prints: edgemesh-relay install --signer KEY --yes"

// listensWithin is how long a relay may take to listen once its unit has started, peerAnswers another one to answer.
const listensWithin, peerAnswers = 30 * time.Second, 5 * time.Second

// installation is one of the relay on this host, or its end.
type installation struct {
	placed.Files
	record struct {
		placed.Record
		Sysctls map[string]int `json:"sysctls"` // before they were raised
		Pending bool           `json:"pending"` // something was written that the relay does not run with yet
	}
	membership, kubeconfig, secret string
	announce, signers              []string
	peer                           string
	purge, yes                     bool

	binary    string
	systemctl func(ctx context.Context, args ...string) error               // nil: there is no systemd
	output    func(ctx context.Context, name string, args ...string) string // of a program, "" where it fails
	ifaces    func() ([]ifaceAddr, error)
}

func (i *installation) save() error { return placed.Save(i.recordPath(), i.record) }

func (i *installation) recordPath() string {
	return i.Path(recordFile) // not in the state directory, which is the relay's own to write
}

// load reads the record, where this host can have an installation. The error wraps fs.ErrNotExist if there is none.
func (i *installation) load() error {
	switch {
	case i.Root == "/" && os.Geteuid() != 0:
		return errors.New("not root: run it as root")
	case i.systemctl == nil:
		return errors.New("systemd does not run on this host, and nothing was changed: have your init run `edgemesh-relay run --config " + defaultConfig + "`, or use the container (docs/relay.md)")
	}
	i.record.Files, i.record.Sysctls = map[string]string{}, map[string]int{}
	i.Record, i.Save = &i.record.Record, i.save
	err := placed.Load(i.recordPath(), &i.record)
	if i.record.Files == nil {
		i.record.Files = map[string]string{}
	}
	if i.record.Sysctls == nil {
		i.record.Sysctls = map[string]int{}
	}
	return err
}

func newInstall() *cobra.Command {
	i := thisHost()
	c := &cobra.Command{
		Use:   "install",
		Short: "Install the relay on this server as a systemd unit, and start it",
		Long: `Copy this binary to ` + binPath + `, make the key, write ` + defaultConfig + `
and a unit, load tcp_bbr and raise the limits of UDP buffers now and at each boot, start
the relay, wait until it listens, and print its addresses and the line for the cluster.
Before anything is written, what would keep the relay from its members is refused: no
public address, a port that is taken, members' source missing or unreadable. A firewall
of this host that closes a port is named, with the command that opens it. Nothing is
sent anywhere, except to --peer.

Run it again to upgrade, or to change what the flags give: the key stays, and so does
the rest of ` + defaultConfig + `. Who the members are comes from one of
  --signer            the keys that sign them, as kubectl edgemesh relay add prints them;
                      --yes where relay.yaml has another source, which they replace
  --membership        cluster.yaml, readable by every user
  --kubeconfig        of a cluster's API, mode 0600; the next release has --signer alone
  --join-secret-file  nodes that prove the secret in it are served, mode 0600`,
		Example: `  edgemesh-relay install --signer 12D3KooW…
  edgemesh-relay install --signer 12D3KooW… --announce 203.0.113.5    # EC2, GCP, Azure, 1:1 NAT
  edgemesh-relay install --membership /etc/edgemesh/cluster.yaml
  edgemesh-relay install --dry-run --join-secret-file /etc/edgemesh/join-secret`,
		Args: cli.Args(),
		RunE: func(c *cobra.Command, _ []string) error {
			i.Out = c.OutOrStdout()
			return i.install(c.Context())
		},
	}
	c.Flags().StringVar(&i.membership, "membership", "", "membership file with the members to serve")
	c.Flags().StringSliceVar(&i.signers, "signer", nil, "public key whose signed members are served (repeat for each)")
	c.Flags().StringVar(&i.kubeconfig, "kubeconfig", "", "kubeconfig of the API that knows the members")
	c.Flags().StringVar(&i.secret, "join-secret-file", "", "file with the secret that nodes prove")
	c.Flags().StringSliceVar(&i.announce, "announce", nil, "public address or name of this server, where no interface has it (repeat for each)")
	c.Flags().StringVar(&i.peer, "peer", "", "HOST or HOST:PORT of a relay to ask for the public address, where no interface has one")
	c.Flags().BoolVar(&i.yes, "yes", false, "with --signer: drop the other source or keys in relay.yaml, and nodes that they alone name")
	c.Flags().BoolVar(&i.Dry, "dry-run", false, "check everything, say what would be done, and do nothing")
	return c
}

func newUninstall() *cobra.Command {
	i := thisHost()
	c := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove what install wrote",
		Long: `Stop the relay, remove the files that install wrote, except those changed since, and
restore the kernel's limits. The key and ` + defaultConfig + ` stay, so that a
relay that is installed again is the same one.`,
		Example: `  edgemesh-relay uninstall
  edgemesh-relay uninstall --purge      # also the key, relay.yaml and changed files`,
		Args: cli.Args(),
		RunE: func(c *cobra.Command, _ []string) error {
			i.Out = c.OutOrStdout()
			return i.uninstall(c.Context())
		},
	}
	c.Flags().BoolVar(&i.purge, "purge", false, "also remove the key, "+defaultConfig+" and files changed since")
	return c
}

func thisHost() *installation {
	i := &installation{systemctl: placed.Systemctl(), ifaces: interfaceAddrs}
	i.Root = "/"
	i.binary, _ = os.Executable() // reading it fails then
	i.output = func(ctx context.Context, name string, args ...string) string {
		out, err := exec.CommandContext(ctx, name, args...).Output()
		if err != nil {
			return ""
		}
		return string(out)
	}
	return i
}

func (i *installation) install(ctx context.Context) error {
	if err := i.load(); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := i.ask(ctx); err != nil {
		return err
	}
	text, c, err := i.configuration()
	if err == nil {
		err = i.readable(ctx, c)
	}
	if err != nil {
		return cli.Usage(err)
	}
	before := maps.Clone(i.record.Files)
	if err := errors.Join(i.addressed(c), i.free(ctx, c)); err != nil {
		return err
	}
	i.open(ctx, c)
	id := "ID"
	if !i.Dry {
		if id, err = self.PeerID("stateDir", i.Path(defaultStateDir)); err != nil {
			return err
		}
		if slices.Contains(i.signers, id) {
			return cli.Usage(errors.New("--signer is this relay's own key: give the cluster's, which `kubectl edgemesh relay add` prints"))
		}
	}
	// One that runs keeps its circuits where nothing is new; secrets may be, under the same name.
	verb := "start"
	if i.record.Pending || i.kubeconfig != "" || i.secret != "" {
		verb = "restart"
	}
	if err := i.pending(true); err != nil {
		return err
	}
	for _, step := range []func() error{func() error { return i.place(c) }, func() error { return i.tune(ctx) }, func() error { return i.configure(text) }} {
		if err := step(); err != nil {
			return err
		}
	}
	if i.Dry {
		i.Done()
		return nil
	}
	if !maps.Equal(before, i.record.Files) {
		verb = "restart"
	}
	for _, args := range [][]string{{"daemon-reload"}, {"enable", unitName}, {verb, unitName}} {
		if err := i.systemctl(ctx, args...); err != nil {
			return fmt.Errorf("%w; its log ends with:\n%s", err, i.output(ctx, "journalctl", "-u", unitName, "-n", "3", "-o", "cat"))
		}
	}
	r, err := i.listening(ctx, id)
	if err == nil {
		err = i.pending(false)
	}
	if err != nil {
		return err
	}
	i.Say("started  %s, which listens\n\nits addresses:\n  %s\n\nthe line for the cluster%s", unitName, strings.Join(r.Addresses, "\n  "), line(c, r.Addresses))
	i.Done()
	return nil
}

// pending notes whether what was written still has to be started.
func (i *installation) pending(is bool) error {
	if i.Dry {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(i.recordPath()), 0o755); err != nil {
		return err
	}
	i.record.Pending = is
	return i.save()
}

// line is what makes members use the relay.
func line(c config, addrs []string) string {
	if c.membership.File != "" {
		return ", in cluster.yaml of every node and relay:\n  relays: [" + strings.Join(addrs, ", ") + "]"
	}
	if c.byStatement() {
		return ", where kubectl works (without Kubernetes: `relays` in cluster.yaml):\n  kubectl edgemesh relay add " + strings.Join(addrs, " ")
	}
	return " (without Kubernetes: `relays` in cluster.yaml):\n  manifests/first-steps.sh --pod-cidr CIDR --relay " + strings.Join(addrs, " --relay ")
}

// keyOf finds a key at the margin, with the lines below it that belong to it.
func keyOf(key string) *regexp.Regexp {
	return regexp.MustCompile(`(?m)^` + key + `:.*\n?(?:(?:[ \t]|- ).*\n?)*`)
}

// configuration is relay.yaml as it is to be: what is there, with the keys that flags give.
func (i *installation) configuration() (string, config, error) {
	have, err := os.ReadFile(i.Path(defaultConfig))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", config{}, err
	}
	text, changed := string(have), []string{}
	set := func(given bool, key, value string) {
		if !given {
			return
		}
		if at := keyOf(key).FindStringIndex(text); at != nil {
			text = text[:at[0]] + key + ": " + value + "\n" + text[at[1]:]
		} else {
			text = strings.TrimSuffix(text, "\n") + "\n" + key + ": " + value + "\n"
		}
		changed = append(changed, key)
	}
	for n, a := range i.announce {
		if ip, err := netip.ParseAddr(a); err == nil {
			i.announce[n] = map[bool]string{true: "/ip4/", false: "/ip6/"}[ip.Is4()] + a
		} else if !strings.HasPrefix(a, "/") {
			i.announce[n] = "/dns/" + a
		}
	}
	for _, f := range []*string{&i.membership, &i.kubeconfig, &i.secret} {
		if *f != "" {
			*f, _ = filepath.Abs(*f) // the working directory is there
		}
	}
	pins := len(i.signers) > 0
	if pins && i.membership+i.kubeconfig+i.secret != "" || i.membership != "" && i.kubeconfig != "" {
		return "", config{}, errors.New("--signer, --membership and --kubeconfig exclude each other, and a secret is of no use with --signer")
	}
	if is := regexp.MustCompile(`(?m)^membership: \{file: /etc/edgemesh/cluster.yaml\}.*\n`); (pins || i.secret != "") && i.membership+i.kubeconfig == "" && is.MatchString(text) {
		if _, err := os.Stat(i.Path("/etc/edgemesh/cluster.yaml")); errors.Is(err, fs.ErrNotExist) { // the package's example
			text, changed = is.ReplaceAllString(text, ""), append(changed, "membership")
		}
	}
	for _, key := range regexp.MustCompile(`12D3Koo\w+`).FindAllString(regexp.MustCompile(`(?m)^signers:.*`).FindString(text), -1) {
		if pins && !i.yes && !slices.Contains(i.signers, key) {
			return "", config{}, fmt.Errorf("%s has signers: %s, whose bans and statements would no longer count: give --signer %s as well, or add --yes", defaultConfig, key, key)
		}
	}
	set(pins, "signers", "["+strings.Join(i.signers, ", ")+"]")
	for _, key := range []string{"membership", "joinSecretFile"} { // what statements replace
		if at := keyOf(key).FindStringIndex(text); pins && at != nil {
			if !i.yes {
				return "", config{}, fmt.Errorf("%s has %s, which these keys replace: nodes that they do not sign lose this relay, and new agents of 0.2.0 need one of this release connected to it; add --yes", defaultConfig, key)
			}
			text, changed = text[:at[0]]+text[at[1]:], append(changed, key)
		}
	}
	set(i.membership != "", "membership", fmt.Sprintf("{file: %q}", i.membership))
	set(i.kubeconfig != "", "membership", fmt.Sprintf("{kubernetes: {kubeconfig: %skubeconfig}}", credentials))
	set(i.secret != "", "joinSecretFile", credentials+"join-secret")
	set(len(i.announce) > 0, "announce", "["+strings.Join(i.announce, ", ")+"]")
	if err != nil && !pins && i.membership+i.kubeconfig+i.secret == "" {
		return "", config{}, errors.New("who the members are is not known: give --signer KEY, --membership FILE, --kubeconfig FILE or --join-secret-file FILE")
	}
	c, bad := parseConfig(defaultConfig, []byte(text))
	for name, given := range map[string]string{"kubeconfig": i.kubeconfig, "join-secret": i.secret} {
		if _, err := os.Stat(i.Path(unitPath + ".d/" + name + ".conf")); given == "" && strings.Contains(text, credentials+name) && errors.Is(err, fs.ErrNotExist) {
			flag := map[string]string{"kubeconfig": "kubeconfig", "join-secret": "join-secret-file"}[name]
			return "", c, fmt.Errorf("%s reads a %s that nothing hands to the unit any longer: give --%s FILE", defaultConfig, name, flag)
		}
	}
	switch {
	case bad != nil:
		return "", c, bad
	case len(changed) > 0 && regexp.MustCompile(`(?m)^\{`).MatchString(text):
		return "", c, fmt.Errorf("%s is written in braces: set %s there by hand, and leave the flags out", defaultConfig, strings.Join(changed, ", "))
	case c.stateDir != defaultStateDir:
		return "", c, fmt.Errorf("%s: stateDir: the unit lets the relay write to %s alone; move the key there, and remove stateDir", defaultConfig, defaultStateDir)
	case err == nil && text != string(have):
		i.Say("kept     %s, except for %s", defaultConfig, strings.Join(changed, ", "))
	case err == nil:
		i.Say("kept     %s", defaultConfig)
	}
	return strings.TrimPrefix(text, "\n"), c, nil
}

// readable refuses what the relay could not read: it is a user of its own, whom systemd hands the secrets.
func (i *installation) readable(ctx context.Context, c config) error {
	if i.kubeconfig != "" {
		i.Todo = append(i.Todo, formerWay)
		if err := secretfile.Private(i.Path(i.kubeconfig)); err != nil {
			return fmt.Errorf("--kubeconfig: %w", err)
		}
	}
	if i.secret != "" {
		if _, err := join.Load(i.Path(i.secret)); err != nil {
			return fmt.Errorf("--join-secret-file: %w", err)
		}
	}
	path := c.membership.File
	if path == "" {
		return nil
	}
	hidden := regexp.MustCompile(`^/(home|root|run/user|tmp|var/tmp)/`).MatchString(path) // by ProtectHome and PrivateTmp of the unit
	bit := fs.FileMode(0o004)
	for at := path; at != "/"; at = filepath.Dir(at) {
		if info, err := os.Stat(i.Path(at)); hidden || err == nil && info.Mode()&bit == 0 {
			return fmt.Errorf("%s: the relay, which is a user of its own, cannot read it there: put it into /etc/edgemesh, with mode 0644", at)
		}
		bit = 0o001
	}
	m := c.membership
	m.File = i.Path(path)
	members, err := newSource(m, kube.Config{StateDir: i.Path(defaultStateDir)})
	if err != nil {
		return err
	}
	state, warning, err := members.Start(ctx)
	if err = errors.Join(err, warning); err != nil {
		return source.Explain(c.file, c.membership, err)
	}
	underlay.TreatAsPublic(state.WANCIDRs)
	return fits(c, state, "")
}

// ask announces the address at which the peer sees this host, if no interface has a public one.
func (i *installation) ask(ctx context.Context) error {
	ifaces, err := i.ifaces()
	if err != nil || i.peer == "" || slices.ContainsFunc(ifaces, func(a ifaceAddr) bool { return underlay.IsPublic(a.ip) }) {
		return err
	}
	host := i.peer
	if _, _, err := net.SplitHostPort(host); err != nil {
		host = net.JoinHostPort(host, strconv.Itoa(agent.RelayPort))
	}
	ctx, cancel := context.WithTimeout(ctx, peerAnswers)
	defer cancel()
	a, err := seenBy(ctx, host)
	if err != nil {
		return fmt.Errorf("--peer %s: it does not say which address this server has: %w; give --announce ADDRESS", i.peer, err)
	}
	i.announce = append(i.announce, a.String())
	return nil
}

// seenBy is the address at which a relay sees this host.
func seenBy(ctx context.Context, relay string) (netip.Addr, error) {
	to, err := net.ResolveUDPAddr("udp", relay)
	if err != nil {
		return netip.Addr{}, err
	}
	server := netip.AddrPortFrom(to.AddrPort().Addr().Unmap(), to.AddrPort().Port())
	c, err := net.ListenPacket(map[bool]string{true: "udp4", false: "udp6"}[server.Addr().Is4()], ":0")
	if err != nil {
		return netip.Addr{}, err
	}
	defer c.Close()
	a, err := stun.Query(ctx, c, server)
	return a.Mapped.Addr(), err
}

// addressed refuses a relay that members elsewhere cannot reach.
func (i *installation) addressed(c config) error {
	for _, a := range c.announce {
		if manet.IsPrivateAddr(a) {
			i.Todo = append(i.Todo, fmt.Sprintf("announce has %s, which is private: only members of that network reach it", a))
		}
	}
	ifaces, err := i.ifaces()
	if err != nil || len(c.announce) > 0 {
		return err
	}
	view, err := viewOf("", mesh.State{})
	if err != nil {
		return err
	}
	addrs, public := offered(c.listen, ifaces, view)
	if !public {
		return cli.Usage(fmt.Errorf("no interface has a public address (%s): behind a 1:1 NAT, as on EC2, GCP and Azure, give the server's with --announce ADDRESS",
			wording.List(wording.Texts(addrs))))
	}
	v4 := func(a ma.Multiaddr) bool { return a[0].Protocol().Code == ma.P_IP4 }
	if slices.ContainsFunc(c.listen, v4) && !slices.ContainsFunc(addrs, v4) && slices.ContainsFunc(ifaces, func(a ifaceAddr) bool { return a.ip.Is4() && !a.virtual }) {
		i.Todo = append(i.Todo, fmt.Sprintf("no interface has a public IPv4 address, so that sites with IPv4 alone do not reach the relay: behind a 1:1 NAT, as on EC2, GCP and Azure, "+
			"install again with --announce for that address, and for %s", wording.List(wording.Texts(addrs))))
	}
	return nil
}

// free refuses ports that other programs have.
func (i *installation) free(ctx context.Context, c config) error {
	listen := slices.Clone(c.listen)
	at, _ := web.Loopback(c.metricsAddress)
	if a, err := netip.ParseAddrPort(at); err == nil {
		m, _ := manet.FromNetAddr(net.TCPAddrFromAddrPort(a)) // it is one
		listen = append(listen, m)
	}
	own := "pid=" + strings.TrimSpace(i.output(ctx, "systemctl", "show", "-p", "MainPID", "--value", unitName)) + ","
	for _, a := range listen {
		if !errors.Is(bindable(a), syscall.EADDRINUSE) {
			continue
		}
		proto, port := portOf(a)
		by := i.output(ctx, "ss", "-Hlnp", "-A", proto, "sport", "=", ":"+strconv.Itoa(port))
		if strings.Contains(by, own) {
			continue // the relay that this one takes over from
		}
		if at := strings.Index(by, `(("`); at >= 0 { // ss: users:(("nginx",pid=12,fd=6))
			by = strings.NewReplacer(`"`, "", ",", " ", "(", "", ")", "").Replace(strings.TrimSpace(by[at:]))
		} else {
			by = "another program"
		}
		return cli.Usage(fmt.Errorf("port %d/%s is taken, by %s: stop it, or set listen or metricsAddress in %s", port, proto, by, defaultConfig))
	}
	return nil
}

func portOf(a ma.Multiaddr) (proto string, port int) {
	port, _ = strconv.Atoi(a[1].Value())
	return a[1].Protocol().Name, port
}

// open names rules of this host's firewall that close the relay's ports.
func (i *installation) open(ctx context.Context, c config) {
	ruleset := i.output(ctx, "nft", "list", "ruleset")
	for _, a := range c.listen {
		proto, port := portOf(a)
		p := firewall.Port{Proto: proto, Number: port, V6: a[0].Protocol().Code == ma.P_IP6}
		command := map[bool]string{false: "iptables-save", true: "ip6tables-save"}[p.V6]
		if by, remedy := p.Closing(i.output(ctx, command), ruleset); by != "" {
			i.Todo = append(i.Todo, fmt.Sprintf("open %d/%s, which this host's firewall closes (%s): %s", port, proto, by, remedy))
		}
	}
}

// packaged reports whether a package has brought the unit.
func (i *installation) packaged() bool {
	_, err := os.Stat(i.Path(packaged))
	return err == nil
}

// place writes the program, the unit and what hands it its secrets; a package's stay.
func (i *installation) place(c config) error {
	for name, source := range map[string]string{"kubeconfig": i.kubeconfig, "join-secret": i.secret} {
		path := unitPath + ".d/" + name + ".conf"
		unused := name == "kubeconfig" && c.membership.Kubernetes == nil || name == "join-secret" && c.joinSecretFile == ""
		if st, err := i.State(path); err == nil && st == placed.Ours && unused && !i.Dry { // the unit would not start without the file
			delete(i.record.Files, path)
			if err := os.Remove(i.Path(path)); err != nil {
				return err
			}
		}
		if source != "" {
			if err := i.Replace(path, []byte("[Service]\nLoadCredential="+name+":"+source+"\n"), 0o644); err != nil {
				return err
			}
		}
	}
	if i.packaged() {
		i.Say("kept     %s and its program, which a package has brought", packaged)
		return nil
	}
	data, err := os.ReadFile(i.binary)
	if err == nil {
		err = i.Replace(binPath, data, 0o755)
	}
	return errors.Join(err, i.Put(unitPath, []byte(manifests.RelayUnit), 0o644))
}

// tune loads BBR and raises the limits of UDP buffers, now and at each boot. A higher limit stays.
func (i *installation) tune(ctx context.Context) error {
	text := ""
	for _, name := range []string{"rmem_max", "wmem_max"} {
		data, _ := os.ReadFile(i.Path(sysctls + name)) // 0 where it is not there
		is, _ := strconv.Atoi(strings.TrimSpace(string(data)))
		text += fmt.Sprintf("net.core.%s = %d\n", name, max(is, socket.UDPBuffer))
		if is >= socket.UDPBuffer || i.Dry {
			continue
		}
		i.record.Sysctls[name] = is
		if err := errors.Join(i.save(), os.WriteFile(i.Path(sysctls+name), strconv.AppendInt(nil, socket.UDPBuffer, 10), 0o644)); err != nil {
			i.Todo = append(i.Todo, fmt.Sprintf("net.core.%s cannot be raised: %v", name, err))
		}
	}
	err := errors.Join(i.Put("/etc/sysctl.d/60-edgemesh-relay.conf", []byte(text), 0o644), i.Put("/etc/modules-load.d/edgemesh-relay.conf", []byte("tcp_bbr\n"), 0o644))
	if !i.Dry {
		i.output(ctx, "modprobe", "tcp_bbr")
		if data, _ := os.ReadFile(i.Path(available)); !slices.Contains(strings.Fields(string(data)), "bbr") {
			i.Todo = append(i.Todo, "this kernel has no BBR (`modprobe tcp_bbr` fails): circuits are slow where packets are lost; use one that has it")
		}
	}
	return err
}

// configure writes relay.yaml. The record has its digest, so that a change by hand has the relay restarted, too.
func (i *installation) configure(text string) error {
	have, err := os.ReadFile(i.Path(defaultConfig))
	if err == nil && string(have) == text && i.record.Files[defaultConfig] == placed.Digest(have) {
		return nil
	}
	return i.Write(defaultConfig, []byte(text), 0o644)
}

// listening waits until the relay listens.
func (i *installation) listening(ctx context.Context, id string) (r report, err error) {
	ctx, cancel := context.WithTimeout(ctx, listensWithin)
	defer cancel()
	for {
		r, err = askStatus(ctx, i.Path(defaultStateDir))
		if err == nil && r.PeerID == id && !slices.ContainsFunc(r.Findings, func(f finding) bool { return f.ID == starting }) {
			return r, nil
		}
		if !wake.Sleep(ctx, listensWithin/100) {
			return r, fmt.Errorf("the unit has started, and the relay does not listen: journalctl -u %s says why", unitName)
		}
	}
}

// uninstall continues after errors.
func (i *installation) uninstall(ctx context.Context) error {
	err := i.load()
	if errors.Is(err, fs.ErrNotExist) && !i.purge {
		return fmt.Errorf("not installed by `edgemesh-relay install`: %s does not exist", i.recordPath())
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var errs []error
	if _, err := os.Stat(i.Path(unitPath)); err == nil || i.packaged() { // else a try before has removed it
		if err := i.systemctl(ctx, "disable", "--now", unitName); err != nil {
			errs = append(errs, err)
		} else {
			i.Say("stopped  %s", unitName)
		}
	}
	for name, was := range i.record.Sysctls {
		data, _ := os.ReadFile(i.Path(sysctls + name))
		if strings.TrimSpace(string(data)) == strconv.Itoa(socket.UDPBuffer) { // nobody has changed it since
			errs = append(errs, os.WriteFile(i.Path(sysctls+name), strconv.AppendInt(nil, int64(was), 10), 0o644))
		}
	}
	if !i.purge {
		delete(i.record.Files, defaultConfig)
		i.Say("kept     %s, and the key in %s", defaultConfig, defaultStateDir)
	}
	errs = append(errs, i.Take(i.purge), i.systemctl(ctx, "daemon-reload"))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := os.Remove(i.recordPath()); err != nil && !errors.Is(err, fs.ErrNotExist) || !i.purge {
		return err
	}
	if err := os.Remove(i.Path(defaultConfig)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	dir := i.Path(defaultStateDir)
	real, err := filepath.EvalSymlinks(dir) // of a user that systemd makes, it is a link
	return errors.Join(err, os.RemoveAll(real), os.RemoveAll(dir))
}
