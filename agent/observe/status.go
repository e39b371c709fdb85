package observe

import (
	"edgemesh/agent/control"
)

// FromStatus is the report of a node with that status.
func FromStatus(s control.Status) Report {
	r := Report{Version: s.Version, StartedAt: s.StartedAt, NAT: s.NAT.Kind, Findings: s.Findings}
	for _, x := range s.Relays {
		if x.Connected || !x.Spare {
			r.Relays = append(r.Relays, Relay{PeerID: x.PeerID, Reserved: x.Reserved, Lost: !x.Connected, RTTMs: x.RTTMs, Addr: x.Addr})
		}
	}
	for _, p := range s.Peers {
		if p.Path == "idle" {
			continue
		}
		r.Pairs = append(r.Pairs, Pair{
			Peer: p.PeerID, Path: p.Path, Transport: p.Transport, Relay: p.Relay, RTTMs: p.RTTMs, Since: p.Since, Reason: p.Reason,
			TxBytes: p.TxBytes, RxBytes: p.RxBytes, LANBytes: p.LANBytes, QueueMs: p.QueueMs, Drops: p.Drops,
		})
	}
	return r
}
