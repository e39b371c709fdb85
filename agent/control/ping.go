package control

import "edgemesh/internal/cause"

// PingRequest requests Count probes of a node (by name) or of a pod (by IP); 0 are probes until the client is gone, which
// only a stream can have.
type PingRequest struct {
	Target     string `json:"target"`
	Count      int    `json:"count"`
	IntervalMs int    `json:"intervalMs,omitempty"` // between two probes; 0: the agent's
	Timeline   bool   `json:"timeline,omitempty"`   // the last first contact is wanted, too
}

// PingReply reports the probes of one ping. A probe of a node is an
// authenticated echo over the path in use; a probe of a pod is an ICMP echo
// through the data plane.
type PingReply struct {
	Target    string       `json:"target"`
	Node      string       `json:"node"`
	PodIP     string       `json:"podIP,omitempty"`
	Path      string       `json:"path"`
	Transport string       `json:"transport"`
	Relay     string       `json:"relay,omitempty"`  // peer ID of the relay that the path uses
	Reason    string       `json:"reason,omitempty"` // why the path is not a better one
	Sent      int          `json:"sent"`
	Received  int          `json:"received"`
	MinMs     *float64     `json:"minMs"`
	AvgMs     *float64     `json:"avgMs"`
	MaxMs     *float64     `json:"maxMs"`
	Probes    []PingResult `json:"probes"`
	Timeline  *Timeline    `json:"timeline,omitempty"`
}

// Timeline is the last first contact with a node, when there was no path to it, as both ends see it. Each end's clock begins with its
// own first step; between a request and what follows it are the wires, the relay and the other end.
type Timeline struct {
	Ago   string `json:"ago,omitempty"` // how long ago it began; "": there was none since the agent started
	Here  []Step `json:"here"`
	There []Step `json:"there"`
	Error string `json:"error,omitempty"` // why There is empty
}

// Step is one of a first contact.
type Step struct {
	Step string  `json:"step"`
	Ms   float64 `json:"ms"` // after the first one
}

// PingResult is the outcome of one probe.
type PingResult struct {
	Seq       int         `json:"seq"`
	RTTMs     *float64    `json:"rttMs"`          // milliseconds; null when lost
	Path      string      `json:"path,omitempty"` // the path this probe took
	Transport string      `json:"transport,omitempty"`
	Relay     string      `json:"relay,omitempty"`
	Endpoint  string      `json:"endpoint,omitempty"` // where the peer was reached
	Reason    string      `json:"reason,omitempty"`   // why the path is not a better one
	Cause     cause.Cause `json:"cause,omitzero"`     // why it was lost, in one of few words
	Error     string      `json:"error,omitempty"`    // the same with what was tried
}

// Add counts one probe, and keeps it if that is wanted.
func (r *PingReply) Add(p PingResult, keep bool) {
	r.Sent++
	if keep {
		r.Probes = append(r.Probes, p)
	}
	if p.RTTMs == nil {
		return
	}
	v := *p.RTTMs
	avg := v
	if r.Received > 0 {
		avg = (*r.AvgMs*float64(r.Received) + v) / float64(r.Received+1)
	}
	r.Received++
	r.AvgMs = &avg
	if r.MinMs == nil || v < *r.MinMs {
		r.MinMs = &v
	}
	if r.MaxMs == nil || v > *r.MaxMs {
		r.MaxMs = &v
	}
}

// pingEvent is one line of a stream of probes: each probe, and at the end the reply or the error.
type pingEvent struct {
	Probe *PingResult `json:"probe,omitempty"`
	Reply *PingReply  `json:"reply,omitempty"`
	Error string      `json:"error,omitempty"`
}
