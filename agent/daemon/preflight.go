package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/agent/config"
	"edgemesh/agent/host"
	"edgemesh/agent/kube"
	"edgemesh/agent/mesh"
	"edgemesh/agent/source"
	"edgemesh/tunnel/p2p/identity"
	"edgemesh/tunnel/tun"
)

// preflight checks what an agent with this configuration would fail on, while another one
// still does the work: key, membership, and what it needs of the host. It uses neither
// network nor API, and changes nothing. A *ConfigError is the operator's to fix.
func preflight(ctx context.Context, cfg config.Config) error {
	var id peer.ID
	key, err := identity.Load(filepath.Join(cfg.StateDir, identity.KeyFile))
	switch {
	case errors.Is(err, fs.ErrNotExist): // is made when it starts
	case err != nil:
		return keyError(err)
	default:
		if id, err = peer.IDFromPrivateKey(key); err != nil {
			return fmt.Errorf("derive peer ID: %w", err)
		}
	}
	if _, err := joinSecrets(cfg); err != nil {
		return configError(err)
	}
	members, err := source.New(cfg.Membership, kube.Config{NodeName: cfg.NodeName, PeerID: mesh.PeerID(id.String()), StateDir: cfg.StateDir})
	if err != nil {
		return configError(err)
	}
	if cfg.Membership.File != "" && id != "" {
		s, _, err := members.Start(ctx)
		if err != nil {
			return configError(err)
		}
		if _, err := planFor(s, cfg, id); err != nil {
			return configError(fmt.Errorf("%s: %w", members, err))
		}
	}
	if cfg.CNIMode == config.CNIOwn {
		if err := installer(cfg, slog.New(slog.DiscardHandler)).Check(); err != nil {
			return err
		}
	}
	return errors.Join(tun.Available(), host.Usable())
}
