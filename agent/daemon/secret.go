package daemon

import (
	"context"
	"fmt"

	"edgemesh/agent/config"
	secret "edgemesh/tunnel/p2p/join"
)

// joinSecrets reads what relays without a membership ask for. The error names file and key.
func joinSecrets(cfg config.Config) ([]secret.Secret, error) {
	if cfg.JoinSecretFile == "" {
		return nil, nil
	}
	s, err := secret.Load(cfg.JoinSecretFile)
	if err != nil {
		return nil, fmt.Errorf("joinSecretFile: %w", err)
	}
	return s, nil
}

// followJoinSecrets proves changed secrets from now on, until ctx ends.
func (d *daemon) followJoinSecrets(ctx context.Context) {
	secret.Watch(ctx, d.cfg.JoinSecretFile, nil, d.node.SetJoinSecrets, func(err error) {
		d.log.Error("join secret rejected: the last good one is used; without a good one relays will refuse this node once the secret is rotated",
			"err", fmt.Errorf("joinSecretFile: %w", err))
	})
}
