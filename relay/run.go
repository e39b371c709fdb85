package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/agent/cli"
	agent "edgemesh/agent/config"
	"edgemesh/agent/kube"
	"edgemesh/agent/mesh"
	"edgemesh/agent/snapshot"
	"edgemesh/agent/source"
	"edgemesh/internal/processors"
	"edgemesh/tunnel/p2p/identity"
	"edgemesh/tunnel/p2p/socket"
	"edgemesh/tunnel/p2p/wan"
)

// shutdownTime bounds the end of the metrics endpoint.
const shutdownTime = 2 * time.Second

// run is the relay's life from configuration to SIGTERM (the end of ctx). It
// writes the relay's addresses to stdout, one per line, once it is ready.
func run(ctx context.Context, c config, stdout io.Writer, logger *slog.Logger) error {
	identity.LogLibrary(logger)
	name := "stateDir"
	if c.file == "" {
		name += " (set by a file that --config names)"
	}
	key, err := cli.LoadKey(name, c.stateDir)
	if err != nil {
		return withFile(c, err)
	}
	unlock, err := lockDir(c.stateDir)
	if err != nil {
		return withFile(c, err)
	}
	defer unlock()
	self, err := peer.IDFromPrivateKey(key)
	if err != nil {
		return fmt.Errorf("derive peer ID: %w", err)
	}
	members, err := source.New(c.membership, kube.Config{ReadOnly: true, AgentVersion: version, StateDir: c.stateDir, Log: logger})
	if err != nil {
		return cli.Usage(source.Explain(c.file, c.membership, err))
	}
	state, warning, err := members.Start(ctx)
	switch {
	case errors.Is(err, source.ErrUnusable):
		return cli.Usage(source.Explain(c.file, c.membership, err))
	case ctx.Err() != nil:
		return nil // told to stop while the API had no answer yet
	case err != nil:
		return err
	}
	if err := fits(c, state, self); err != nil {
		return cli.Usage(withFile(c, err))
	}
	for _, p := range wan.TreatAsPublic(state.WANCIDRs) {
		logger.Warn("wanCIDRs: an IPv6 range has no effect", "prefix", p)
	}
	v, err := newServer(c, key, state, logger)
	if err != nil {
		return startError(c, err, "listen on 0.0.0.0 and set announce")
	}
	m := &membership{server: v, stateDir: c.stateDir, self: self, log: logger, wan: state.WANCIDRs}
	if warning != nil { // else the watch begins with both
		logger.Warn("membership cannot be used", "err", warning)
		m.checkListed(state)
	}
	return errors.Join(serve(ctx, c, m, members, stdout), v.close())
}

// fits checks the configuration against the membership. The error names the key
// at fault.
func fits(c config, s mesh.State, self peer.ID) error {
	for _, n := range s.Nodes {
		if n.PeerID == mesh.PeerID(self.String()) {
			return fmt.Errorf("stateDir: %s/%s is node %s's key; give the relay a state directory of its own", c.stateDir, identity.KeyFile, n.Name)
		}
	}
	if err := agent.OutsideOf(s.PodCIDRs, "listen", c.listen); err != nil {
		return err
	}
	return agent.OutsideOf(s.PodCIDRs, "announce", c.announce)
}

// serve tells the addresses, answers probes and follows the membership until ctx
// ends.
func serve(ctx context.Context, c config, m *membership, members source.Source, stdout io.Writer) error {
	ready := func(bool) {}
	if c.metricsAddress != "" {
		web, err := serveHTTP(c.metricsAddress, m.server.metrics.registry, m.log)
		if err != nil {
			return startError(c, err, "use 127.0.0.1, \"\" for none")
		}
		m.log.Info("metrics endpoint", "address", web.addr)
		ready = web.ready.Store
		defer func() {
			end, cancel := context.WithTimeout(context.Background(), shutdownTime)
			defer cancel()
			web.close(end)
		}()
	}
	if err := printAddresses(m.server, m.self, stdout, m.log); err != nil {
		return err
	}
	for _, f := range socket.Fallbacks() {
		m.log.Warn("goes on with less than it could have", "what", f.What, "effect", f.Effect, "remedy", f.Remedy)
	}
	processors.Limit()
	ready(true)
	defer ready(false)
	members.Watch(ctx, m.set, m.problem)
	m.log.Info("stopping")
	return nil
}

// startError adds what to do about an address that cannot be had; instead is what to
// do about one that no interface has.
func startError(c config, err error, instead string) error {
	if !errors.Is(err, errListen) {
		return err
	}
	where := "set it in a file and give that with --config"
	if c.file != "" {
		where = "change it"
	}
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		err = fmt.Errorf("%w; stop the program that uses the port, or %s", err, where)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		err = fmt.Errorf("%w; no interface has this address: %s, or %s", err, instead, where)
	}
	return fmt.Errorf("%s%w", prefix(c.file), err)
}

// withFile puts the configuration file before an error about one of its keys.
func withFile(c config, err error) error { return fmt.Errorf("%s%w", prefix(c.file), err) }

func prefix(file string) string {
	if file == "" {
		return ""
	}
	return file + ": "
}

// printAddresses writes what belongs into the membership's relays.
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
		logger.Warn("no address to give out: set announce to the address members reach this host at", "example", "announce: [/ip4/5.5.5.5]")
	case !public:
		logger.Warn("no public address on any interface: members elsewhere cannot reach the addresses above; "+
			"behind a 1:1 NAT or a port forwarding set announce to the public one", "example", "announce: [/ip4/5.5.5.5]")
	}
	logger.Info("relay is ready", "peer", self, "listen", v.host.Network().ListenAddresses())
	return nil
}

// membership follows cluster.yaml for a running server.
type membership struct {
	server   *server
	stateDir string
	self     peer.ID
	log      *slog.Logger
	wan      []netip.Prefix // in force since the start
}

// set takes a membership that has been read well.
func (m *membership) set(s mesh.State) {
	m.server.metrics.memberships.WithLabelValues("good").Inc()
	if err := m.server.setMembership(s); err != nil {
		m.log.Error("membership cannot be used; the last good one stays in force", "err", err)
		return
	}
	m.log.Info("membership in force", "members", len(s.Nodes), "relays", len(s.Relays))
	if !slices.Equal(m.wan, s.WANCIDRs) {
		m.log.Warn("wanCIDRs: the change takes effect at the next start")
	}
	m.checkListed(s)
	m.save(s)
}

func (m *membership) problem(err error) {
	m.server.metrics.memberships.WithLabelValues("bad").Inc()
	m.log.Error("membership cannot be used; the last good one stays in force", "err", err)
}

func (m *membership) save(s mesh.State) {
	if err := snapshot.Save(m.stateDir, s); err != nil {
		m.log.Warn("no snapshot for an offline start", "err", err)
	}
}

// checkListed warns of a wrong identity, a common mistake: a lost state
// directory, or addresses of another relay pasted.
func (m *membership) checkListed(s mesh.State) {
	for _, r := range s.Relays {
		if r.PeerID == mesh.PeerID(m.self.String()) {
			return
		}
	}
	m.log.Warn("this relay is not listed in the membership's relays: members will not use it; "+
		"add the addresses printed at the start, or restore the identity.key that is listed", "peer", m.self, "port", agent.RelayPort)
}
