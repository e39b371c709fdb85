package observe

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"slices"
	"time"

	"edgemesh/agent/control"
	"edgemesh/agent/findings"
	"edgemesh/internal/wording"
)

const (
	// MaxReport bounds a report, in bytes: MaxPairs with reasons of usual length.
	MaxReport = 256 << 10
	// MaxPairs bounds the pairs of a report. A member that uses more leaves out those with the least traffic.
	MaxPairs = 600
	// maxRelays and maxFindings bound the rest of it, maxVictims what follows from one finding, maxText each text, maxName each name
	// (the names in a consequence: two), in bytes.
	maxRelays   = 64
	maxFindings = 8
	maxVictims  = 16
	maxText     = 300
	maxName     = 64
)

// The errors of Read, besides those of the stream.
var (
	ErrTooLong = errors.New("report is too long")
	ErrRubbish = errors.New("report cannot be read")
)

// Paths are the values of Pair.Path, the best first. A pair without recent traffic is in no report.
var Paths = []string{"native", "vxlan", "direct", "punched", "relayed", "none"} //nolint:gochecknoglobals // a constant

// Report is what a member says of itself. A member that is not an observer gets Version and Pairs, with at most its own.
type Report struct {
	Version   string    `json:"version,omitempty"`
	StartedAt time.Time `json:"startedAt,omitzero"`
	NAT       string    `json:"nat,omitempty"`
	Relays    []Relay   `json:"relays,omitempty"`
	Findings  Findings  `json:"findings,omitempty"`
	Unchanged bool      `json:"unchangedFindings,omitempty"` // on the wire: Findings are those of the report before
	Problems  []string  `json:"problems,omitempty"`          // on the wire: all that agents of release 0.2 know of Findings
	Pairs     []Pair    `json:"pairs,omitempty"`
	Left      int       `json:"left,omitempty"`    // pairs that are left out
	Refused   string    `json:"refused,omitempty"` // why there is nothing else
}

// Findings are what is wrong at a member, and notes, as its status has them.
type Findings []findings.Finding

// Relay is a relay that the member uses, or should.
type Relay struct {
	PeerID   string   `json:"peerID"`
	Reserved bool     `json:"reserved,omitempty"`
	Lost     bool     `json:"lost,omitempty"` // not connected, though it is needed
	RTTMs    *float64 `json:"rttMs,omitempty"`
	Addr     string   `json:"addr,omitempty"` // known of this node's own: others do not send it
}

// Pair is how the member reaches another one.
type Pair struct {
	Peer      string     `json:"peer"` // its peer ID
	Path      string     `json:"path"`
	Transport string     `json:"transport,omitempty"`
	Relay     string     `json:"relay,omitempty"` // peer ID
	RTTMs     *float64   `json:"rttMs,omitempty"`
	Since     *time.Time `json:"since,omitempty"`
	Reason    string     `json:"reason,omitempty"`
	TxBytes   uint64     `json:"tx,omitempty"` // through the tunnel, since the agent started
	RxBytes   uint64     `json:"rx,omitempty"`
	LANBytes  uint64     `json:"lanRx,omitempty"` // received past the tunnel
	QueueMs   *float64   `json:"queueMs,omitempty"`
	Drops     uint64     `json:"drops,omitempty"`
}

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

// traffic is by what pairs are chosen where there are too many.
func (p Pair) traffic() uint64 { return p.TxBytes + p.RxBytes + p.LANBytes }

// Write sends a report. Pairs and text beyond the bounds are left out first, so that it fits. Findings that are those of the
// report sent before are not repeated.
func Write(w io.Writer, r Report, before Findings) error {
	body, err := encode(r, before)
	if err != nil {
		return err
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...))
	return err
}

func encode(r Report, before Findings) ([]byte, error) {
	r.bound()
	for i := range r.Relays {
		r.Relays[i].Addr = ""
	}
	for _, f := range r.Findings {
		if f.Severity.Wrong() {
			r.Problems = append(r.Problems, wording.Foreign(f.ID+": "+f.Text, maxText))
		}
	}
	if len(r.Findings) > 0 && reflect.DeepEqual(r.Findings, before.bounded()) {
		r.Findings, r.Unchanged = nil, true
	}
	for {
		body, err := json.Marshal(r)
		if err != nil {
			return nil, fmt.Errorf("encode report: %w", err)
		}
		if len(body) <= MaxReport || len(r.Pairs) == 0 {
			return body, nil
		}
		keep := len(r.Pairs) / 2 // text that JSON has to escape is several times as long
		r.Left += len(r.Pairs) - keep
		r.Pairs = r.Pairs[:keep]
	}
}

// Read reads a report, after one with the findings before. What it returns is within the bounds, whatever was sent: known
// paths, finite numbers, short text without control characters. The error wraps ErrTooLong or ErrRubbish where the sender
// breaks the rules.
func Read(r io.Reader, before Findings) (Report, error) {
	var length [4]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return Report{}, err
	}
	n := binary.BigEndian.Uint32(length[:])
	if n == 0 || n > MaxReport {
		return Report{}, fmt.Errorf("%w: %d bytes are announced, at most %d are allowed", ErrTooLong, n, MaxReport)
	}
	var body bytes.Buffer // grows with what really comes
	if _, err := io.CopyN(&body, r, int64(n)); err != nil {
		return Report{}, err
	}
	var out Report
	if err := json.Unmarshal(body.Bytes(), &out); err != nil {
		return Report{}, fmt.Errorf("%w: %s", ErrRubbish, wording.Foreign(err.Error(), maxText))
	}
	switch {
	case out.Unchanged:
		out.Findings = before
	case len(out.Findings) == 0: // release 0.2
		for _, p := range out.Problems {
			out.Findings = append(out.Findings, findings.Finding{ID: "problem", Severity: findings.Warning, Text: p, Source: findings.Agent})
		}
	}
	out.bound()
	return out, nil
}

// bound brings a report within the bounds.
func (r *Report) bound() {
	r.Version, r.NAT, r.Refused = wording.Foreign(r.Version, maxName), wording.Foreign(r.NAT, maxName), wording.Foreign(r.Refused, maxText)
	r.Left = max(0, min(r.Left, math.MaxInt32))
	r.Relays = slices.Clone(r.Relays[:min(len(r.Relays), maxRelays)])
	for i, x := range r.Relays {
		r.Relays[i] = Relay{PeerID: wording.Foreign(x.PeerID, maxName), Reserved: x.Reserved, Lost: x.Lost, RTTMs: number(x.RTTMs), Addr: wording.Foreign(x.Addr, maxText)}
	}
	r.Findings, r.Unchanged, r.Problems = r.Findings.bounded(), false, nil
	seen := map[string]bool{}
	r.Pairs = slices.DeleteFunc(slices.Clone(r.Pairs), func(p Pair) bool {
		twice := seen[p.Peer]
		seen[p.Peer] = true
		return twice || !slices.Contains(Paths, p.Path)
	})
	if more := len(r.Pairs) - MaxPairs; more > 0 {
		slices.SortStableFunc(r.Pairs, func(a, b Pair) int { return cmp.Compare(b.traffic(), a.traffic()) })
		r.Pairs, r.Left = r.Pairs[:MaxPairs], r.Left+more
	}
	for i := range r.Pairs {
		p := &r.Pairs[i]
		p.Peer, p.Transport, p.Relay, p.Reason = wording.Foreign(p.Peer, maxName), wording.Foreign(p.Transport, maxName), wording.Foreign(p.Relay, maxName), wording.Foreign(p.Reason, maxText)
		p.RTTMs, p.QueueMs = number(p.RTTMs), number(p.QueueMs)
	}
}

// bounded is all of them within the bounds, nil for none. Severities that nobody knows count as warnings.
func (all Findings) bounded() (out Findings) {
	for _, f := range all[:min(len(all), maxFindings)] {
		f = f.Bounded()
		f.ID, f.Node, f.Source = wording.Foreign(f.ID, maxName), wording.Foreign(f.Node, maxName), wording.Foreign(f.Source, maxName)
		f.Subject, f.Text, f.Remedy = wording.Foreign(f.Subject, maxText), wording.Foreign(f.Text, maxText), wording.Foreign(f.Remedy, maxText)
		if f.Severity != findings.Note && !f.Severity.Wrong() {
			f.Severity = findings.Warning
		}
		f.Victims = slices.Clone(f.Victims[:min(len(f.Victims), maxVictims)])
		for i, v := range f.Victims {
			f.Victims[i] = wording.Foreign(v, 2*maxName)
		}
		out = append(out, f)
	}
	return out
}

// number is nil for what no measurement can be.
func number(v *float64) *float64 {
	if v == nil || math.IsNaN(*v) || *v < 0 || *v > 1e9 {
		return nil
	}
	return v
}
