package lan

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"edgemesh/agent/mesh"
)

// settle chooses a peer's paths anew; tell lets the kernel know.
func (s *Service) settle(p *peer, now time.Time) {
	for _, v := range p.choose() {
		name := s.members[p.id].Name
		if t := p.using[v]; t != nil {
			s.log.Info("path on the LAN is in use", "peer", name, "path", t.c.kind, "via", t.c.via, "link", t.c.link, "pods", [2]string{"IPv4", "IPv6"}[v])
		} else {
			s.log.Info("path on the LAN is left for the tunnel", "peer", name, "reason", p.reason(v == 1, s.noNative, s.noVXLAN), "pods", [2]string{"IPv4", "IPv6"}[v])
		}
	}
	s.untold = p.plan(now) || s.untold
}

// tell lets the kernel know what has changed. The caller holds mu.
func (s *Service) tell() {
	if s.untold {
		s.apply()
	}
}

// apply gives all ways to the kernel. The caller holds mu.
func (s *Service) apply() {
	s.untold = false
	var all []mesh.Way
	for _, p := range s.peers {
		all = append(all, p.ways...)
	}
	text := ""
	if err := s.cfg.Kernel.SetPaths(s.ctx, s.plan.Paths(all)); err != nil && !errors.Is(err, context.Canceled) {
		text = err.Error()
	}
	if text != s.applyErr && text != "" {
		s.log.Error("paths on the LAN are not all set", "err", text)
	}
	s.applyErr = text
}

// countTraffic notes which paths carry packets.
func (s *Service) countTraffic() {
	s.mu.Lock()
	inUse := slices.ContainsFunc(s.plan.Members, func(m mesh.Node) bool { p := s.peers[m.PeerID]; return p != nil && p.works() })
	s.mu.Unlock()
	if !inUse {
		return
	}
	counts, unknown := s.cfg.Kernel.Traffic()
	if unknown != nil {
		s.log.Debug("traffic of paths is not known", "err", unknown)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for _, p := range s.peers {
		for _, t := range p.tracks {
			if !t.usable() {
				continue
			}
			link := cmp.Or(t.in, t.c.link)
			if t.c.kind == mesh.VXLAN {
				link = ""
			}
			for _, b := range s.members[p.id].PodCIDRs {
				k := mesh.Inlet{Block: b.Masked(), Link: link}
				if b.Addr().Is6() == t.c.v6 && (unknown != nil || counts[k] > s.counts[k]) {
					t.traffic(now)
				}
			}
		}
	}
	s.counts = counts
}
