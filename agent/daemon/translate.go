package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/agent/cniconf"
	"edgemesh/agent/deputy"
	"edgemesh/agent/findings"
	"edgemesh/internal/cni/upkeep"
	"edgemesh/internal/config"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/proxy"
	"edgemesh/internal/resolve"
	"edgemesh/internal/secretfile"
	"edgemesh/tunnel"
	secret "edgemesh/tunnel/p2p/admission/join"
	"edgemesh/tunnel/p2p/relay/relayservice"
)

// relayLimits translates the configuration for p2p; nil means no relay.
func relayLimits(c config.Relay) *relayservice.Limits {
	if !c.Enabled {
		return nil
	}
	l := relayservice.Limits(c.Limits)
	return &l
}

// joinSecrets reads what relays without a membership require. The error names file and key.
func joinSecrets(cfg config.Config) ([]secret.Secret, error) {
	if cfg.JoinSecretFile == "" {
		return nil, nil
	}
	s, err := secret.Load(cfg.JoinSecretFile)
	if err != nil {
		return nil, &config.KeyError{Key: "joinSecretFile", Err: err}
	}
	return s, nil
}

// proxyOf returns how connections go through the HTTP proxy, nil if there is none. Addresses inside the mesh, where the mesh
// is known, are reached without it. The error names the key, or the variable. Credentials that others may read are used; checkSecrets
// says so.
func proxyOf(cfg config.Config, inside func(netip.Addr) bool) (*proxy.Egress, error) {
	w, err := proxy.New(proxy.Config{URL: cfg.Proxy, Credentials: cfg.ProxyUser, Inside: inside, Getenv: os.Getenv})
	if err == nil && cfg.ProxyUser != "" && w != nil {
		if _, err := proxy.Credentials(cfg.ProxyUser); err != nil && !errors.Is(err, secretfile.ErrPermissions) {
			return nil, &config.KeyError{Key: cfg.Key("proxyCredentials"), Err: err}
		}
	}
	switch {
	case err == nil:
		return w, nil
	case cfg.Proxy == "":
		return nil, &config.KeyError{Key: "$HTTPS_PROXY", Err: fmt.Errorf("%w; correct it, or set proxy", err)}
	}
	return nil, &config.KeyError{Key: cfg.Key("proxy"), Err: err}
}

// checkResolver finds that the name servers of now are unknown.
func checkResolver(names *resolve.Names) []findings.Finding {
	if !names.Outdated() {
		return nil
	}
	return []findings.Finding{findings.Notef("resolver", "the host has replaced /etc/resolv.conf since this agent's container began, which still reads the former one: hosts are looked up at the name servers that held then")}
}

// checkSecrets finds files that other users of this host may read, and that are used nevertheless.
func checkSecrets(cfg config.Config) (out []findings.Finding) {
	if cfg.ProxyUser != "" {
		if _, err := proxy.Credentials(cfg.ProxyUser); errors.Is(err, secretfile.ErrPermissions) {
			out = append(out, findings.Warningf("secrets", "run: chmod 600 "+cfg.ProxyUser+"; the next release does not start with this file", "%v", err))
		}
	}
	if k := cfg.Membership.Kubernetes; k != nil && k.Kubeconfig != "" {
		files, _ := client.SecretFiles(k.Kubeconfig) // what else is wrong with it, the membership says
		for _, file := range files {
			if err := secretfile.Private(file); errors.Is(err, secretfile.ErrPermissions) {
				out = append(out, findings.Warningf("secrets", "run: chmod 600 "+file, "membership.kubernetes.kubeconfig: %v", err))
			}
		}
	}
	return out
}

// installer writes what the container runtime and the CNI plugin read.
func installer(cfg config.Config, log *slog.Logger) *cniconf.Installer {
	return cniconf.New(cniconf.Config{
		RuntimeDir: cfg.RuntimeDir, ConfDir: cfg.CNIConfDir, BinDir: cfg.CNIBinDir, DataDir: cfg.CNIDataDir,
		CNI: cfg.CNI, Status: upkeep.Status, Log: log,
	})
}

// deputyOf writes to the API what this node's own access may not, where the membership comes from there.
func deputyOf(cfg config.Config, key crypto.PrivKey, via *proxy.Egress, names *resolve.Names, log *slog.Logger) *deputy.Deputy {
	k := cfg.Membership.Kubernetes
	if k == nil {
		return nil
	}
	return deputy.New(deputy.Config{Key: key, Certificate: k.NodeCertificate, CertificateKey: k.NodeKey, JoinSecretFile: cfg.JoinSecretFile, Proxy: via, Names: names, Log: log})
}

// Options are what the command line adds to the configuration.
type Options struct {
	Version     string
	PortableTUN bool   // do not use the kernel's offloads
	Wait        bool   // stand by while another agent runs here, instead of ErrLocked
	Revision    string // of the DaemonSet that this agent's pod is of; "": of none
	Log         *slog.Logger
	Level       *slog.LevelVar // of Log; nil: it cannot be changed

	// Tests block loops with these: the first is called where one begins work, the others may replace what the tunnel reads and
	// what its lanes write to.
	Block    func(loop string)
	Device   func(tunnel.Device) tunnel.Device
	Underlay func(tunnel.Underlay) tunnel.Underlay
}

// level is that of the log; changing it has no effect where there is none.
func (o Options) level() *slog.LevelVar {
	if o.Level == nil {
		return new(slog.LevelVar)
	}
	return o.Level
}

// relayAddrs are the addresses others reach this node at as their relay, as the
// membership's relays have them.
func relayAddrs(addrs []ma.Multiaddr, id peer.ID) []string {
	var out []string
	for _, a := range addrs {
		out = append(out, a.String()+"/p2p/"+id.String())
	}
	return out
}
