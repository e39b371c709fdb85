package controller

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/membership/signed"
	"edgemesh/internal/wake"
)

// signer signs who is a member, as the API has it, and that one is no longer, or banned. Relays pin its key; nodes that pin the operator's
// check whether that has delegated to this one. Members' statements are kept in the NodeRecords, the others in the PodNetwork's status.
type signer struct {
	access  client.Access
	api     cluster
	records func(context.Context) ([]api.Object, error) // the NodeRecords that there are
	key     func(context.Context) (crypto.PrivKey, error)
	out     chan map[string]string // to the records, latest: by node
	grants  *atomic.Bool           // an operator has delegated to this key: whether a node may have another key is then the operator's to say
	version string
	log     *slog.Logger

	// Of the goroutine in run:
	have map[string]signed.Signed // by node, also that it is gone
	bans map[string]signed.Signed // by whom they name
}

// newsMost bounds what the status has of departures and bans; of departures the newest stay, newsLeast, and those of the last hour.
const newsMost, newsLeast, newsFor = 1024, 64, 3600

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
	s.log.Info("this controller signs who is a member: relays that pin its key need nothing else; nodes that pin another one believe it after: edgemesh-agent membership delegate KEY --range CIDR --until DAY", "key", self)
	records, err := s.records(ctx)
	if err != nil {
		return fmt.Errorf("read the NodeRecords: %w", err)
	}
	var n api.PodNetwork
	if err := s.api.Get(ctx, api.PodNetworks().Path(api.NetworkName), &n); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("read the PodNetwork: %w", err)
	}
	s.read(records, n.Status.Signed, self)
	return membership(ctx, s.access, s.version, s.log.With("part", "signer"), func(m mesh.State) { s.onState(ctx, m, key) })
}

// read takes what this key has signed before, in the records and the PodNetwork, which stays where nothing changed.
func (s *signer) read(records []api.Object, all []string, self peer.ID) {
	s.have, s.bans = map[string]signed.Signed{}, map[string]signed.Signed{}
	for _, o := range records {
		if r, ok := o.(*api.NodeRecord); ok && r.Spec.Signed != "" {
			all = append(all, r.Spec.Signed)
		}
	}
	for _, text := range all {
		x, err := signed.Read(text)
		switch {
		case err != nil || x.Signer != self:
		case x.Kind == signed.Ban:
			s.bans[x.Who()] = x
		case x.Epoch >= s.have[x.Name].Epoch:
			s.have[x.Name] = x
		}
	}
}

// onState signs what m has, or no longer has, and is not signed yet, and hands out all of it.
func (s *signer) onState(ctx context.Context, m mesh.State, key crypto.PrivKey) {
	out, fresh, replaced := make(map[string]string, len(m.Nodes)), 0, false
	for _, n := range m.Admitted().Nodes {
		id, err := peer.Decode(string(n.PeerID))
		x := s.have[n.Name]
		if err == nil && (x.ID != id || !slices.Equal(x.Blocks, n.PodCIDRs) || x.Gone()) {
			replaced = replaced || x.ID != "" && x.ID != id && !x.Gone()
			before := max(x.Epoch, s.bans[n.Name].Epoch, s.bans[string(n.PeerID)].Epoch) // it lifts these
			x, err = signed.Sign(signed.Statement{Kind: signed.Member, Name: n.Name, ID: id, Blocks: n.PodCIDRs, Epoch: signed.Now(before)}, key)
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
	if replaced {
		s.grants.Store(granted(m, key))
	}
	select {
	case <-s.out: // an older one that nobody has read
	default:
	}
	select {
	case s.out <- out:
	case <-ctx.Done():
	}
	id, news := s.news(ctx, m, out, key)
	status := map[string]any{"status": map[string]any{"signer": id, "signed": news}}
	for !slices.Equal(news, m.News) || id != m.Signer {
		err := s.api.Patch(ctx, api.PodNetworks().Path(api.NetworkName)+"/status", client.Merge, nil, status, &api.PodNetwork{})
		if err == nil || apierrors.IsNotFound(err) { // there will be one, and another State
			return
		}
		s.log.Warn("who is banned or gone is not told in the PodNetwork's status; retrying", "err", err)
		if !wake.Sleep(ctx, tryAgain) {
			return
		}
	}
}

// granted reports whether m has a delegation to a key.
func granted(m mesh.State, key crypto.PrivKey) bool {
	self, err := peer.IDFromPrivateKey(key)
	return err == nil && slices.ContainsFunc(m.Signed, func(text string) bool {
		x, err := signed.Read(text)
		return err == nil && x.Kind == signed.Delegation && x.ID == self
	})
}

// left reports whether a node is not admitted, or its Node gone: one that lacks its MeshNode for a while, or a block, stays.
func (s *signer) left(ctx context.Context, m mesh.State, name string) bool {
	if _, listed := m.Node(name); listed {
		return true
	}
	return apierrors.IsNotFound(s.api.Get(ctx, api.Nodes().Path(name), &api.Node{}))
}

// news signs whom m bans and who of those signed is not in out, and returns what the status is to say of it, and
// the key.
func (s *signer) news(ctx context.Context, m mesh.State, out map[string]string, key crypto.PrivKey) (id string, news []string) {
	var all []signed.Signed
	sign := func(in map[string]signed.Signed, who string, x signed.Statement) {
		done, err := signed.Sign(x, key)
		if err != nil {
			s.log.Warn("it cannot be signed that a node is banned or gone", "node", who, "err", err)
			return
		}
		in[who] = done
	}
	for name, x := range s.have {
		if out[name] == "" && !x.Gone() && s.left(ctx, m, name) {
			x.Epoch = signed.Now(x.Epoch)
			x.Expires = x.Epoch
			sign(s.have, name, x.Statement)
		}
		if x = s.have[name]; x.Gone() {
			all = append(all, x)
		}
	}
	slices.SortFunc(all, func(x, y signed.Signed) int {
		return cmp.Or(cmp.Compare(y.Epoch, x.Epoch), cmp.Compare(x.Name, y.Name))
	})
	since := uint64(max(time.Now().Unix()-newsFor, 0))
	for len(all) > newsLeast && all[len(all)-1].Epoch < since {
		all = all[:len(all)-1]
	}
	self, _ := peer.IDFromPrivateKey(key) // a key that has signed has one
	for _, who := range m.Banned {
		if _, ok := s.bans[who]; !ok && !granted(m, key) { // a delegate bans nobody
			x := signed.Statement{Kind: signed.Ban, Name: who, Epoch: signed.Now(s.have[who].Epoch)}
			if id, err := peer.Decode(who); err == nil {
				x.Name, x.ID = "", id
			}
			sign(s.bans, who, x)
		}
	}
	maps.DeleteFunc(s.bans, func(who string, _ signed.Signed) bool { return !slices.Contains(m.Banned, who) })
	bans := slices.SortedFunc(maps.Values(s.bans), func(x, y signed.Signed) int { return cmp.Compare(x.Who(), y.Who()) })
	for _, x := range append(bans, all...)[:min(len(bans)+len(all), newsMost)] {
		news = append(news, x.String())
	}
	return self.String(), news
}
