package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/internal/cli"
	agent "edgemesh/internal/config"
	"edgemesh/internal/keyfile"
	"edgemesh/internal/membership/kube"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/membership/signed"
	"edgemesh/internal/membership/snapshot"
	"edgemesh/internal/membership/source"
	"edgemesh/internal/memory"
	"edgemesh/internal/processors"
	"edgemesh/internal/resolve"
	"edgemesh/internal/secretfile"
	"edgemesh/internal/self"
	"edgemesh/internal/version"
	"edgemesh/internal/watchdog"
	underlay "edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/carrier/socket"
	"edgemesh/tunnel/p2p/who/identity"
)

// run is the relay from its configuration to SIGTERM (the end of ctx). It writes
// the relay's addresses to stdout, one per line, once it is ready.
func run(ctx context.Context, c config, stdout io.Writer, logger *slog.Logger) error {
	dog := watchdog.New(watchdog.Config{Log: logger, Block: c.block})
	defer dog.Start(ctx)()
	identity.LogLibrary(logger)
	name := "stateDir"
	if c.file == "" {
		name += " (set by a file that --config names)"
	}
	key, err := self.LoadKey(name, c.stateDir)
	if err != nil {
		return withFile(c, err)
	}
	unlock, err := lockDir(c.stateDir)
	if err != nil {
		return withFile(c, err)
	}
	defer unlock()
	dog.Remember(c.stateDir)
	self, err := peer.IDFromPrivateKey(key)
	if err != nil {
		return fmt.Errorf("derive peer ID: %w", err)
	}
	status := &reporter{c: c, self: self, hung: dog.Healthy}
	defer serveSocket(c.stateDir, c.level, status, logger)()
	var book *signed.Book
	if c.pins() {
		book = signed.NewBook(c.signers)
	}
	names := resolve.New(resolve.Config{Root: resolve.Mounted, File: filepath.Join(c.stateDir, "names.json"), Log: logger})
	defer names.Close()
	if c.signersFile != "" {
		var end func()
		ctx, end = context.WithCancel(ctx)
		defer end()
		go c.followSigners(ctx, status.serves, end, logger)
		if c.signersText == "" {
			logger.Warn("no controller has made its key yet: until then the members of before are served, and nobody else", "file", c.signersFile)
		}
	}
	members, err := newSource(c.membership, kube.Config{Access: client.Access{Names: names}, ReadOnly: true, AgentVersion: version.Number(), StateDir: c.stateDir, Log: logger})
	if err != nil {
		return cli.Usage(source.Explain(c.file, c.membership, err))
	}
	var pinned *source.Pinned
	if book != nil {
		pinned = source.Pin(members, book, c.membership, key, c.stateDir, "", logger)
		members = pinned
	}
	others, err := newAccess(c, pinned, logger)
	if err != nil {
		return cli.Usage(withFile(c, err))
	}
	if k := c.membership.Kubernetes; k != nil && k.Kubeconfig != "" {
		logger.Warn(formerWay)
		if err := checkOpen(k.Kubeconfig, logger); err != nil {
			return cli.Usage(fmt.Errorf("%s: membership.kubernetes.kubeconfig: %w", c.file, err))
		}
	}
	state, warning, err := members.Start(ctx)
	switch {
	case errors.Is(err, source.ErrUnusable):
		return cli.Usage(source.Explain(c.file, c.membership, err))
	case ctx.Err() != nil:
		return nil // stopped before the API had answered
	case err != nil:
		return err
	}
	if err := fits(c, state, self); err != nil {
		return cli.Usage(withFile(c, err))
	}
	for _, p := range underlay.TreatAsPublic(state.WANCIDRs) {
		logger.Warn("wanCIDRs: IPv6 ranges have no effect; remove this one", "prefix", p)
	}
	v, err := newServer(c, key, self, state, others, logger)
	if err != nil {
		return startError(c, err, "listen on 0.0.0.0 and set announce")
	}
	m := &membership{server: v, saved: &snapshot.Keeper{Dir: c.stateDir}, self: self, loop: dog.Loop("membership"), log: logger, wan: state.WANCIDRs, nodes: state.Admitted().Nodes, who: source.Reporter{Log: logger}, last: reads{Listed: true}}
	if m.keeps = !c.byStatement(); m.keeps {
		m.who.Restarted(c.stateDir, state)
	}
	dog.Watch("connections", v.watch)
	if warning != nil { // otherwise the watch begins with both
		logger.Warn("membership cannot be read: using the snapshot of the last good one", "err", warning)
		m.checkListed(state)
		m.note(warning)
	}
	status.m.Store(m)
	if book != nil {
		defer v.passOn(book, m.heard, logger)()
	}
	err = serve(ctx, c, m, members, dog, stdout)
	if err := m.saved.Close(); err != nil {
		logger.Warn("snapshot not written as a whole: an older version would start with an older one", "err", err)
	}
	return errors.Join(err, v.close())
}

// checkOpen refuses a kubeconfig whose secret belongs to another user, if any user may read it, or others than that one change it.
// Releases up to 0.2 used every one: root's, our own, and those that a group reads are used for one more release.
func checkOpen(path string, log *slog.Logger) error {
	files, _ := client.SecretFiles(path) // Start says what else is wrong with it
	for _, file := range files {
		err := secretfile.Private(file)
		if !errors.Is(err, secretfile.ErrPermissions) {
			continue
		}
		info, failed := os.Stat(file)
		if failed != nil {
			return failed
		}
		if owner := info.Sys().(*syscall.Stat_t).Uid; owner != 0 && int(owner) != os.Geteuid() && info.Mode().Perm()&0o026 != 0 {
			return err
		}
		log.Warn("the kubeconfig's secret is open to other users of this host: the next release does not start with it", "err", err)
	}
	return nil
}

// newSource returns where the membership comes from; with a join secret or a pinned key there need not be one.
func newSource(m agent.Membership, c kube.Config) (source.Source, error) {
	if m.None() {
		return source.None{}, nil
	}
	return source.New(m, c)
}

// fits checks the configuration against the membership. The error names the key
// to change.
func fits(c config, s mesh.State, self peer.ID) error {
	if slices.Contains(c.signers, self) {
		return errors.New("signers: has this relay's own key; name the cluster's, as the PodNetwork's status.signer does")
	}
	for _, n := range s.Nodes {
		if n.PeerID == mesh.PeerID(self.String()) {
			return fmt.Errorf("stateDir: %s/%s is node %s's key; give the relay a state directory of its own", c.stateDir, keyfile.Name, n.Name)
		}
	}
	if err := agent.OutsideOf(s.PodCIDRs, "listen", c.listen); err != nil {
		return err
	}
	return agent.OutsideOf(s.PodCIDRs, "announce", c.announce)
}

// serve prints the addresses, answers health checks and follows the membership until
// ctx ends.
func serve(ctx context.Context, c config, m *membership, members source.Source, dog *watchdog.Watchdog, stdout io.Writer) error {
	ready := func(bool) {}
	var wg sync.WaitGroup
	defer wg.Wait()
	if c.metricsAddress != "" {
		web, err := serveHTTP(c.metricsAddress, m.server.metrics.registry, dog.Healthy, m.log)
		if err != nil {
			return startError(c, err, "use 127.0.0.1, \"\" for none")
		}
		m.log.Info("serving metrics", "address", web.addr)
		ready = web.ready.Store
		if web.mesh != nil {
			wg.Go(func() { web.followMesh(ctx, c.runtimeDir, m.log) })
		}
		defer web.close()
	}
	if err := printAddresses(m.server, m.self, stdout, m.log); err != nil {
		return err
	}
	for _, f := range socket.Fallbacks() {
		m.log.Warn("running degraded: "+f.What, "effect", f.Effect, "remedy", f.Remedy)
	}
	processors.Limit()
	memory.Limit()
	memory.AfterStart()
	ready(true)
	dog.Ready("serving members")
	defer ready(false)
	wg.Go(func() { m.server.run(ctx) })
	members.Watch(ctx, m.set, m.problem)
	m.log.Info("stopping")
	return nil
}

// startError adds what to do when an address cannot be listened on; instead is what to
// do about one that no interface has.
func startError(c config, err error, instead string) error {
	if !errors.Is(err, errListen) {
		return err
	}
	where := "set another one in a file and pass that with --config"
	if c.file != "" {
		where = "change the address"
	}
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		err = fmt.Errorf("%w; stop the program that uses the port, or %s", err, where)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		err = fmt.Errorf("%w; no interface has this address: %s, or %s", err, instead, where)
	}
	return withFile(c, err)
}

// printAddresses writes the addresses that belong in the membership's relays.
func printAddresses(v *server, self peer.ID, stdout io.Writer, logger *slog.Logger) error {
	addrs, public := v.addresses()
	id, err := ma.NewComponent("p2p", self.String())
	if err != nil {
		return fmt.Errorf("print addresses: %w", err)
	}
	for _, a := range addrs {
		if _, err := fmt.Fprintln(stdout, a.AppendComponent(id)); err != nil {
			return fmt.Errorf("print addresses: %w", err)
		}
	}
	switch {
	case len(addrs) == 0:
		logger.Warn("no address to print: this host has none that members could reach; set announce to the one they should use", "example", "announce: [/ip4/5.5.5.5]")
	case !public:
		logger.Warn("no public address on any interface: members elsewhere cannot reach the addresses above; "+
			"behind a 1:1 NAT or a forwarded port set announce to the public address", "example", "announce: [/ip4/5.5.5.5]")
	}
	logger.Info("relay ready", "peer", self, "listen", v.host.Network().ListenAddresses())
	return nil
}

// membership follows cluster.yaml for a running server.
type membership struct {
	server *server
	saved  *snapshot.Keeper
	keeps  bool // the snapshot; else that is of the source before
	self   peer.ID
	loop   *watchdog.Loop
	log    *slog.Logger
	wan    []netip.Prefix // in force since the start
	nodes  []mesh.Node    // in force
	who    source.Reporter

	mu   sync.Mutex // a leaf: guards what follows
	last reads
}

// reads are those so far.
func (m *membership) reads() reads {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.last
}

// note remembers how the last read ended.
func (m *membership) note(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	switch {
	case err == nil:
		m.last.Seen, m.last.Failed, m.last.Error = &now, nil, ""
	case m.last.Failed == nil:
		m.last.Failed = &now
		fallthrough
	default:
		m.last.Error = err.Error()
	}
}

// heard remembers who has passed on new statements.
func (m *membership) heard(from string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	m.last.Heard, m.last.From = &now, from
}

// set applies a membership that was read without errors.
func (m *membership) set(s mesh.State) {
	_, end := m.loop.Begin(context.Background())
	defer end()
	m.server.metrics.memberships.WithLabelValues("good").Inc()
	if err := m.server.setMembership(s); err != nil {
		m.refuse(err)
		return
	}
	admitted := s.Admitted().Nodes
	m.who.Report(mesh.Diff(m.nodes, admitted), s)
	m.nodes = admitted
	m.note(nil)
	m.log.Info("membership applied", "members", len(s.Nodes), "relays", len(s.Relays))
	if !slices.Equal(m.wan, s.WANCIDRs) {
		m.log.Warn("wanCIDRs changed: restart the relay to apply the change")
	}
	m.checkListed(s)
	if !m.keeps {
		return
	}
	if err := m.saved.Save(s); err != nil {
		m.log.Warn("snapshot not saved: the relay cannot start while the membership is unreachable", "err", err)
	}
}

func (m *membership) problem(err error) {
	m.server.metrics.memberships.WithLabelValues("bad").Inc()
	m.refuse(err)
}

func (m *membership) refuse(err error) {
	m.note(err)
	m.log.Error("membership rejected: the last good one stays in force", "err", err)
}

// checkListed warns when the membership does not list this relay: mostly the state
// directory was lost, or the addresses of another relay were pasted.
func (m *membership) checkListed(s mesh.State) {
	listed := !m.server.access.needsListing(s) || slices.ContainsFunc(s.Relays, func(r mesh.Relay) bool { return r.PeerID == mesh.PeerID(m.self.String()) })
	m.mu.Lock()
	m.last.Listed = listed
	m.mu.Unlock()
	if listed {
		return
	}
	m.log.Warn("the membership does not list this relay: members will not use it; add the addresses printed at the start "+
		"to relays, or restore the identity.key of the listed relay", "peer", m.self, "port", agent.RelayPort)
}
