package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"

	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/membership/signed"
	"edgemesh/internal/membership/source"
	"edgemesh/tunnel/p2p/admission/gate"
	"edgemesh/tunnel/p2p/admission/join"
	"edgemesh/tunnel/p2p/who/admit"
	"edgemesh/tunnel/p2p/who/identity"
	"edgemesh/tunnel/p2p/who/members"
)

// access is how peers are admitted that the membership does not list.
type access interface {
	// policy is what the gate enforces; view is the membership in force, and come adds a member to it.
	policy(view func() *members.View, come func(members.Member)) *gate.Policy
	// apply puts a membership in force.
	apply(mesh.State)
	// serve handles the protocols that the gate leaves open to such peers.
	serve(handle func(protocol.ID, network.StreamHandler), g *gate.Gate)
	// follow puts changes of its own configuration in force until ctx ends.
	follow(ctx context.Context, g *gate.Gate)
	// needsListing reports whether members find this relay only if the membership s lists it.
	needsListing(s mesh.State) bool
}

var (
	_ access = (*bySecret)(nil)
	_ access = byController{}
	_ access = byStatement{}
)

// newAccess returns what the configuration says. The error names its key.
// pinned is what statements let count; nil: no key is pinned.
func newAccess(c config, pinned *source.Pinned, log *slog.Logger) (access, error) {
	switch {
	case c.byStatement():
		return byStatement{members: pinned}, nil
	case c.joinSecretFile == "":
		return byController{}, nil
	}
	secrets, err := join.Load(c.joinSecretFile)
	if err != nil {
		return nil, fmt.Errorf("joinSecretFile: %w", err)
	}
	return &bySecret{conf: c, secrets: secrets, log: log}, nil
}

// byController lets nodes reach one of the membership's controllers before they are members. The membership bans them.
type byController struct{}

func (byController) policy(view func() *members.View, _ func(members.Member)) *gate.Policy {
	return gate.Controllers(func(p peer.ID) gate.Ruling {
		if v := view(); !v.HasControllers() || v.Banned(p) {
			return gate.LeftToGater
		}
		return gate.MayWait
	})
}

func (byController) apply(mesh.State) {}

func (byController) serve(func(protocol.ID, network.StreamHandler), *gate.Gate) {} // the circuit relay does

func (byController) follow(context.Context, *gate.Gate) {}

func (byController) needsListing(mesh.State) bool { return true }

// byStatement admits whoever shows a statement that counts. Others reach the controllers, whose keys have signed it.
type byStatement struct {
	byController
	members *source.Pinned
}

func (a byStatement) policy(view func() *members.View, come func(members.Member)) *gate.Policy {
	shown := func(p peer.ID, statement string) error {
		if view().IsMember(p) && a.members.Holds(statement) {
			return nil // as all of them after a restart
		}
		err := a.members.Show(statement, p, func(name string) { come(members.Member{Name: name, ID: p}) })
		if view().IsMember(p) {
			return nil // also by another statement: this one is older, or of a key that is new
		}
		return err
	}
	return gate.Statement(signed.MaxShown, shown, func(p peer.ID) gate.Ruling {
		if view().Banned(p) {
			return gate.Banned
		}
		return gate.MayWait
	})
}

func (byStatement) serve(handle func(protocol.ID, network.StreamHandler), g *gate.Gate) {
	handle(identity.MemberProtocol, g.ServeShown)
}

// needsListing: no membership says which relays there are.
func (byStatement) needsListing(mesh.State) bool { return false }

// bySecret admits whoever proves the join secret as a member.
type bySecret struct {
	conf    config
	secrets []join.Secret // at the start
	log     *slog.Logger
	banned  atomic.Pointer[map[peer.ID]bool]
}

func (a *bySecret) policy(func() *members.View, func(members.Member)) *gate.Policy {
	return gate.Secret(a.secrets, a.judge)
}

func (a *bySecret) judge(p peer.ID) gate.Ruling {
	if (*a.banned.Load())[p] {
		return gate.Banned
	}
	return gate.MayWait
}

// apply bans the peers that s refuses, or lists and does not admit. A name that it does not list says nothing about peer IDs.
func (a *bySecret) apply(s mesh.State) {
	banned := make(map[peer.ID]bool)
	listed := make(map[string]bool)
	for _, n := range s.Nodes {
		listed[n.Name] = true
		if id, err := peer.Decode(string(n.PeerID)); err == nil && !s.Admits(n) {
			banned[id] = true
		}
	}
	ids, names := admit.PeerIDs(s.Banned)
	for _, id := range ids {
		banned[id] = true
	}
	for _, name := range names {
		if !listed[name] {
			a.log.Warn("banned: this relay knows no node of that name, so it serves whoever proves the join secret there; ban its peer ID", "name", name)
		}
	}
	a.banned.Store(&banned)
}

func (a *bySecret) serve(handle func(protocol.ID, network.StreamHandler), g *gate.Gate) {
	handle(identity.JoinProtocol, g.ServeJoin)
}

func (a *bySecret) follow(ctx context.Context, g *gate.Gate) {
	join.Watch(ctx, a.conf.joinSecretFile, a.secrets, func(now []join.Secret) {
		a.log.Info("join secret changed: nodes that proved a secret which is gone are disconnected", "secrets", len(now))
		g.SetSecrets(now)
	}, func(err error) {
		a.log.Error("join secret rejected: the last good one stays in force", "err", withFile(a.conf, fmt.Errorf("joinSecretFile: %w", err)))
	})
}

// needsListing: members have this relay in their own membership; this one may list nobody.
func (*bySecret) needsListing(s mesh.State) bool { return len(s.Relays) > 0 }
