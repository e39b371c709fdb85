package controller

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/membership/signed"
	"edgemesh/internal/wake"
)

// signer signs who is a member, as the API has it: blocks are claimed there, and the operator's key is not there. Nodes check whether
// that key has delegated to this one. What is signed is kept in the NodeRecords.
type signer struct {
	access  client.Access
	records func(context.Context) ([]api.Object, error) // the NodeRecords that there are
	key     func(context.Context) (crypto.PrivKey, error)
	out     chan map[string]string // to the records, latest: by node
	version string
	log     *slog.Logger

	have map[string]signed.Signed // by node; of the goroutine in run
}

// run signs until ctx ends.
func (s *signer) run(ctx context.Context) {
	for ; ctx.Err() == nil; wake.Sleep(ctx, tryAgain) {
		if err := s.serve(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("nothing is signed; what is signed stays; retrying", "err", err)
		}
	}
}

func (s *signer) serve(ctx context.Context) error {
	key, err := s.key(ctx)
	if err != nil {
		return err
	}
	self, err := peer.IDFromPrivateKey(key)
	if err != nil {
		return fmt.Errorf("derive peer ID: %w", err)
	}
	s.log.Info("this controller signs who is a member; nodes that pin a key believe it after: edgemesh-agent membership delegate KEY --range CIDR --until DAY", "key", self)
	records, err := s.records(ctx)
	if err != nil {
		return fmt.Errorf("read the NodeRecords: %w", err)
	}
	s.read(records, self)
	return membership(ctx, s.access, s.version, s.log.With("part", "signer"), func(m mesh.State) { s.onState(ctx, m, key) })
}

// read takes what this key has signed before, which stays where nothing changed.
func (s *signer) read(records []api.Object, self peer.ID) {
	s.have = map[string]signed.Signed{}
	for _, o := range records {
		if r, ok := o.(*api.NodeRecord); ok && r.Spec.Signed != "" {
			if x, err := signed.Read(r.Spec.Signed); err == nil && x.Signer == self {
				s.have[x.Name] = x
			}
		}
	}
}

// onState signs what m has and is not signed yet, and hands out all of it.
func (s *signer) onState(ctx context.Context, m mesh.State, key crypto.PrivKey) {
	out, fresh := make(map[string]string, len(m.Nodes)), 0
	for _, n := range m.Admitted().Nodes {
		id, err := peer.Decode(string(n.PeerID))
		x := s.have[n.Name]
		if err == nil && (x.ID != id || !slices.Equal(x.Blocks, n.PodCIDRs)) {
			x, err = signed.Sign(signed.Statement{Kind: signed.Member, Name: n.Name, ID: id, Blocks: n.PodCIDRs, Epoch: signed.Now(x.Epoch)}, key)
			fresh++
		}
		if err != nil {
			s.log.Warn("a node cannot be signed", "node", n.Name, "err", err)
			continue
		}
		s.have[n.Name], out[n.Name] = x, x.String()
	}
	if fresh > 0 {
		s.log.Info("signed members", "count", fresh, "of", len(out))
	}
	select {
	case <-s.out: // an older one that nobody has read
	default:
	}
	select {
	case s.out <- out:
	case <-ctx.Done():
	}
}
