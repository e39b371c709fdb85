package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/libp2p/go-libp2p/core/crypto"
	"golang.org/x/sys/unix"

	"edgemesh/agent/cniconf"
	"edgemesh/agent/host"
	"edgemesh/internal/cni/conf"
	"edgemesh/internal/config"
	"edgemesh/internal/resolve"
	"edgemesh/internal/upkeep"
	"edgemesh/tunnel/p2p"
	secret "edgemesh/tunnel/p2p/admission/join"
	"edgemesh/tunnel/p2p/who/clones"
	"edgemesh/tunnel/p2p/who/members"
	"edgemesh/tunnel/tun"
)

// addressFile and routersFile, in the state directory, are where p2p remembers members' addresses, and how long routers of this
// node's sites remember silent connections.
const (
	addressFile = "addresses.json"
	routersFile = "routers.json"
)

// namesFile, likewise, has the addresses of relays, the API and the proxy that are given by name.
const namesFile = "names.json"

// openDevice opens the TUN.
func openDevice(cfg config.Config, held *heldTUN, portable bool, mtu int, log *slog.Logger) (*lastingTUN, error) {
	device, err := openTUN(tun.Config{Name: host.TUNName, MTU: mtu, Persist: true, Portable: portable, Held: held.take(), Log: log})
	if errors.Is(err, tun.ErrBusy) {
		return nil, hostTaken(err)
	}
	if err == nil && cfg.TUNQueues > 0 {
		log.Warn("tunQueues has no effect: the TUN has one queue; remove the key", "value", cfg.TUNQueues)
	}
	return device, err
}

// nodeConfig is what openNode needs.
type nodeConfig struct {
	cfg     config.Config
	key     crypto.PrivKey
	members members.Membership
	names   *resolve.Names
	inside  func(netip.Addr) bool // the address is one of the cluster's pods
	counts  *counts
	upkeep  *upkeep.Budget
	metered func() bool
	sealed  bool // sealed packets with repair may carry the lanes
	// inFlight is how many bytes of these may be under way.
	inFlight int
	// machine is what is known of this one.
	machine clones.Machine
	log     *slog.Logger
}

// openNode opens the ports to the other members.
func openNode(n nodeConfig) (*p2p.Node, error) {
	cfg := n.cfg
	secrets, err := joinSecrets(cfg)
	if err != nil {
		return nil, configError(err)
	}
	if cfg.Punch.Former != "" {
		n.log.Warn("punch.birthday is replaced by punch.guess, and the next release refuses it", "key", cfg.Key("punch"), "remedy", cfg.Punch.Former)
	}
	via, err := proxyOf(cfg, n.inside)
	if err != nil {
		return nil, configError(err)
	}
	name, _ := os.Hostname()
	node, err := p2p.New(p2p.Config{
		Machine: n.machine, HostName: name,
		Key: n.key, Listen: cfg.Listen, Announced: cfg.Relay.Announce, Membership: n.members, Relay: relayLimits(cfg.Relay), RelayMetrics: n.counts.relay, MDNS: cfg.Discovery.MDNS, PortMapping: cfg.Discovery.PortMapping,
		PortGuessing: cfg.Punch.Guess == config.GuessAuto, Sealed: n.sealed, SealedMemory: n.inFlight, Metered: n.metered, Upkeep: n.upkeep, JoinSecrets: secrets, Proxy: via, Names: n.names,
		Probed: n.counts.probed, Queued: n.counts.queued, Punched: n.counts.punched,
		SocketMark: host.Mark, AddressFile: filepath.Join(cfg.StateDir, addressFile),
		RoutersFile: filepath.Join(cfg.StateDir, routersFile), Log: n.log.With("part", "p2p"),
	})
	switch {
	case err == nil:
		return node, nil
	case errors.Is(err, unix.EADDRINUSE):
		err = fmt.Errorf("%w; another program has the port: stop it, or set listen", err)
	case errors.Is(err, unix.EADDRNOTAVAIL):
		err = fmt.Errorf("%w; no interface has this address: listen on 0.0.0.0, or set another one", err)
	}
	return nil, fmt.Errorf("%s: %w", cfg.Key("listen"), err)
}

// prepareCNI checks what pods are made with, and makes the directories for it.
func prepareCNI(cni *cniconf.Installer, mode config.CNIMode) (*conf.NetConf, error) {
	pods, err := cni.NetConf()
	if err != nil {
		return nil, fmt.Errorf("cni: %w", err)
	}
	if mode == config.CNIOwn {
		return pods, cni.MakeDirs()
	}
	return pods, nil
}

// followJoinSecrets proves changed secrets from now on, until ctx ends.
func followJoinSecrets(ctx context.Context, file string, node *p2p.Node, log *slog.Logger) {
	secret.Watch(ctx, file, nil, node.SetJoinSecrets, func(err error) {
		log.Error("join secret rejected: the last good one is used; without a good one relays will refuse this node once the secret is rotated",
			"err", fmt.Errorf("joinSecretFile: %w", err))
	})
}
