package controller

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
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
	api     cluster
	members <-chan mesh.State
	exist   <-chan map[string]bool // names of Nodes, latest
	key     func(context.Context) (crypto.PrivKey, error)
	public  string                 // the path of the ConfigMap with the key's public form
	secret  string                 // the path of the key's Secret, which has whom it has signed, too: a Node's record goes with it
	out     chan map[string]string // to the records, latest: by node
	grants  *atomic.Bool           // an operator has delegated to this key: whether a node may have another key is then the operator's to say
	log     *slog.Logger
	dropped dropped

	// Of the goroutine in run:
	nodes map[string]bool          // nil: not known yet
	have  map[string]signed.Signed // by node, also that it is gone; without a signer: to be signed again
	bans  map[string]signed.Signed // by whom they name
	kept  []signed.Statement       // as the Secret has them
	wrote time.Time                // when that was written
}

const (
	// newsMost bounds what the status has of departures and bans, which leave room for newsLeast departures. Of these the newest stay,
	// newsLeast, and those of the last hour. Each stays for a minute, newsShown, or waits.
	newsMost, newsLeast, newsFor, newsShown = 1024, 64, 3600, 60
	// lookAgain is how often what is open is tried again, and the most often that the Secret is written, keepRest how long that
	// rests once the API has refused it: what is too long for a Secret stays so.
	lookAgain, keepRest = 10 * time.Second, 5 * time.Minute
	// publishEvery is how often the key's public form is written again: an upgrade by force, or a prune, empties the ConfigMap.
	publishEvery = time.Minute
	// membersEntry of the Secret has the statements about members, without signatures: JSON, by gzip.
	membersEntry = "members"
)

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
	publish := func() {
		public := map[string]any{"data": map[string]string{"signer": self.String()}}
		if err := s.api.Patch(ctx, s.public, client.Merge, nil, public, &struct{}{}); err != nil && ctx.Err() == nil {
			s.log.Warn("relays in the cluster are not told the key; retrying", "configmap", s.public, "err", err)
		}
	}
	publish()
	republish := time.NewTicker(publishEvery)
	defer republish.Stop()
	records, _, err := s.api.List(ctx, api.NodeRecords(), nil)
	if err != nil {
		return fmt.Errorf("read the NodeRecords: %w", err)
	}
	var n api.PodNetwork
	if err := s.api.Get(ctx, api.PodNetworks().Path(api.NetworkName), &n); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("read the PodNetwork: %w", err)
	}
	var held secret
	if err := s.api.Get(ctx, s.secret, &held); err != nil {
		return fmt.Errorf("read whom the key has signed: %w", err)
	}
	if s.kept, err = unpack(held.Data[membersEntry]); err != nil {
		s.log.Warn("whom the key has signed cannot be read: of Nodes that were deleted while no controller led, relays do not learn", "secret", s.secret, "err", err)
	}
	s.read(records, n.Status.Signed, self)
	var m mesh.State
	for again, heard := (<-chan time.Time)(nil), false; ; {
		select {
		case <-ctx.Done():
			return nil
		case m = <-s.members:
			heard = true
		case s.nodes = <-s.exist:
		case <-again:
		case <-republish.C:
			publish()
			continue
		}
		if again = nil; heard && s.onState(ctx, m, key) {
			again = time.After(lookAgain)
		}
	}
}

func unpack(data []byte) (all []signed.Statement, err error) {
	if len(data) == 0 {
		return nil, nil
	}
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	return all, json.NewDecoder(r).Decode(&all)
}

// keep has the Secret say who is signed and not gone, for the next leader. later: it is to be tried again.
func (s *signer) keep(ctx context.Context) (later bool) {
	var all []signed.Statement
	for _, name := range slices.Sorted(maps.Keys(s.have)) {
		if x := s.have[name]; !x.Gone() {
			all = append(all, x.Statement)
		}
	}
	if reflect.DeepEqual(all, s.kept) {
		return false
	}
	if time.Since(s.wrote) < lookAgain {
		return true
	}
	s.wrote = time.Now()
	var data bytes.Buffer
	w := gzip.NewWriter(&data)
	err := errors.Join(json.NewEncoder(w).Encode(all), w.Close())
	if err == nil {
		patch := map[string]any{"data": map[string][]byte{membersEntry: data.Bytes()}}
		err = s.api.Patch(ctx, s.secret, client.Merge, nil, patch, &secret{})
	}
	if err != nil {
		if apierrors.IsInvalid(err) || apierrors.IsRequestEntityTooLargeError(err) {
			s.wrote = time.Now().Add(keepRest)
		}
		s.log.Warn("the next controller will not know whom this one has signed: of Nodes that are deleted while none leads, relays do not learn; retrying", "secret", s.secret, "err", err)
		return true
	}
	s.kept = all
	return false
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
	for _, x := range s.kept {
		if r, ok := s.have[x.Name]; !ok || r.Gone() && x.Epoch > r.Epoch { // a record may have kept an older one
			s.have[x.Name] = signed.Signed{Statement: x}
		}
	}
}

// onState signs what m has, or no longer has, and is not signed yet, and hands out all of it. open: it is to be tried again.
func (s *signer) onState(ctx context.Context, m mesh.State, key crypto.PrivKey) (open bool) {
	out, fresh, replaced := make(map[string]string, len(m.Nodes)), 0, false
	for _, n := range m.Admitted().Nodes {
		id, err := peer.Decode(string(n.PeerID))
		x := s.have[n.Name]
		if err == nil && (x.ID != id || !slices.Equal(x.Blocks, n.PodCIDRs) || x.Gone() || x.Signer == "") {
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
	wake.Latest(s.out, out)
	id, news, open := s.news(m, out, key)
	switch told := slices.Equal(news, m.News) && id == m.Signer; {
	case told:
	case s.dropped.lately():
		open = true
	default:
		switch got, failed := tell(ctx, s.api, s.log, id, news); {
		case failed:
			return true
		case got != nil && (got.Signer != id || len(got.Signed) != len(news)):
			s.dropped.note("podnetworks", s.log)
		}
	}
	return s.keep(ctx) || open
}

// tell puts into the PodNetwork's status which key signs, and what it has signed of bans and departures; nil takes that out. It returns
// what the status says now; nil: there is no PodNetwork.
func tell(ctx context.Context, to cluster, log *slog.Logger, signer, news any) (got *api.PodNetworkStatus, failed bool) {
	status := map[string]any{"status": map[string]any{"signer": signer, "signed": news}}
	var n api.PodNetwork
	err := to.Patch(ctx, api.PodNetworks().Path(api.NetworkName)+"/status", client.Merge, nil, status, &n)
	switch {
	case err == nil:
		return &n.Status, false
	case apierrors.IsNotFound(err): // there will be one, and another State
		return nil, false
	}
	log.Warn("who signs, and who is banned or gone, is not told in the PodNetwork's status; retrying", "err", err)
	return nil, true
}

// granted reports whether m has a delegation to a key.
func granted(m mesh.State, key crypto.PrivKey) bool {
	self, err := peer.IDFromPrivateKey(key)
	return err == nil && slices.ContainsFunc(m.Signed, func(text string) bool {
		x, err := signed.Read(text)
		return err == nil && x.Kind == signed.Delegation && x.ID == self
	})
}

// left reports whether a node that is signed as x is not admitted, or its Node gone or about to be: one that lacks its MeshNode for a
// while, or a block, stays, and so does one that cannot be signed again.
func (s *signer) left(m mesh.State, x *signed.Signed) bool {
	if n, listed := m.Node(x.Name); listed {
		return !m.Admits(n) || string(n.PeerID) != x.ID.String()
	}
	return s.nodes != nil && !s.nodes[x.Name]
}

// news signs whom m bans and who of those signed is not in out, and returns what the status is to say of it, and
// the key. open: it has no room for all of them now.
func (s *signer) news(m mesh.State, out map[string]string, key crypto.PrivKey) (id string, news []string, open bool) {
	sign := func(in map[string]signed.Signed, who string, x signed.Statement) {
		done, err := signed.Sign(x, key)
		if err != nil {
			s.log.Warn("it cannot be signed that a node is banned or gone", "node", who, "err", err)
			return
		}
		in[who] = done
	}
	for _, who := range m.Banned {
		if _, ok := s.bans[who]; !ok {
			x := signed.Statement{Kind: signed.Ban, Name: who, Epoch: signed.Now(s.have[who].Epoch)}
			if id, err := peer.Decode(who); err == nil {
				x.Name, x.ID = "", id
			}
			sign(s.bans, who, x)
		}
	}
	maps.DeleteFunc(s.bans, func(who string, _ signed.Signed) bool { return !slices.Contains(m.Banned, who) })
	now, room, waits := uint64(max(time.Now().Unix(), newsFor)), max(newsMost-len(s.bans), newsLeast), 0
	for _, x := range s.have {
		if x.Gone() && x.Epoch+newsShown > now {
			room--
		}
	}
	var all []signed.Signed
	for name, x := range s.have {
		switch {
		case out[name] != "" || x.Gone():
		case !s.left(m, &x):
		case room <= 0:
			waits++
		default:
			x.Epoch = signed.Now(x.Epoch)
			x.Expires = x.Epoch
			sign(s.have, name, x.Statement)
			room--
		}
		if x = s.have[name]; x.Gone() {
			all = append(all, x)
		}
	}
	if waits > 0 {
		s.log.Warn("the PodNetwork's status has no room for all who are gone; relays learn of the others later", "others", waits)
	}
	slices.SortFunc(all, func(x, y signed.Signed) int {
		return cmp.Or(cmp.Compare(y.Epoch, x.Epoch), cmp.Compare(x.Name, y.Name))
	})
	for most := max(newsMost-len(s.bans), newsLeast); len(all) > newsLeast && all[len(all)-1].Epoch < now-newsFor || len(all) > most; all = all[:len(all)-1] {
		delete(s.have, all[len(all)-1].Name)
	}
	bans := slices.SortedFunc(maps.Values(s.bans), func(x, y signed.Signed) int { return cmp.Compare(x.Who(), y.Who()) })
	for _, x := range append(bans, all...) {
		news = append(news, x.String())
	}
	self, _ := peer.IDFromPrivateKey(key) // a key that has signed has one
	return self.String(), news, waits > 0
}
