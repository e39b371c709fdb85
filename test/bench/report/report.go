package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"
)

// The parts of a report. Each is a run of its own, with its own machine and date.
const (
	Clean    = "clean"    // carriers over a clean underlay, as fast as the machine
	Packets  = "packets"  // the rate of datagrams without loss
	Requests = "requests" // small HTTP requests and datagrams, as many as there can be
	Link     = "link"     // carriers over a slow, long and lossy link; X is the share lost
	Edge     = "edge"     // what carriers spend at the rates of an edge; X is Mbit/s of one paced flow
	Hub      = "hub"      // an agent whose pod asks many edges now and then; X is their number
	LAN      = "lan"      // carriers between nodes on one LAN
	Idle     = "idle"     // an agent that does nothing; X is the number of members
	Egress   = "egress"   // methods to distinguish peers; X is the number of peers
	Code     = "code"     // a packet's steps in our own code, without a kernel
)

// Parts returns all parts in the order in which they are run and shown.
func Parts() []string {
	return []string{Clean, Packets, Requests, Link, Edge, Hub, LAN, Idle, Egress, Code}
}

// EdgePings is the X of small packets in both directions, 50 a second of 160 bytes each: 0.064 Mbit/s.
const EdgePings = 0.064

// The carriers that goals speak of. A row's carrier may be any other name, too.
const (
	Plain      = "veth"
	PlainVXLAN = "vxlan"
	Reference  = "wireguard-go"
	Direct     = "edgemesh"
	TCP        = "edgemesh-tcp"    // UDP is blocked
	Before     = "edgemesh-before" // another version
	Relayed    = "edgemesh-relayed"
	Native     = "edgemesh-native"
	VXLAN      = "edgemesh-vxlan"
)

// Report is everything that was measured, by part.
type Report struct {
	Parts map[string]*Part `json:"parts"`
}

// Part is one run.
type Part struct {
	Taken   time.Time     `json:"taken"`
	Took    time.Duration `json:"tookNs"`
	Rounds  int           `json:"rounds"`
	Flow    time.Duration `json:"flowNs"` // duration of one bulk flow
	Machine Machine       `json:"machine"`
	Others  float64       `json:"others"` // share of the processors' time that something else used, at worst
	Notes   []string      `json:"notes,omitempty"`
	Rows    []Row         `json:"rows"`
}

// Machine says where it ran, and what.
type Machine struct {
	CPU      string            `json:"cpu"`
	Cores    int               `json:"cores"`
	MemoryMB int               `json:"memoryMB"`
	Kernel   string            `json:"kernel"`
	Go       string            `json:"go"`
	Release  string            `json:"release"`  // version of the chart in the tree that was measured
	Versions map[string]string `json:"versions"` // of the programs, by name
}

// Row is one carrier under one condition, all rounds.
type Row struct {
	Carrier string               `json:"carrier"`
	X       float64              `json:"x,omitempty"` // the condition; its meaning is the part's
	Path    string               `json:"path,omitempty"`
	Values  map[Metric][]float64 `json:"values"` // by round
}

// Add enters one round's value.
func (r *Row) Add(m Metric, v float64) {
	if r.Values == nil {
		r.Values = map[Metric][]float64{}
	}
	r.Values[m] = append(r.Values[m], v)
}

// Merge enters one round's values, and its path.
func (r *Row) Merge(round Row) {
	for m, values := range round.Values {
		for _, v := range values {
			r.Add(m, v)
		}
	}
	if round.Path != "" {
		r.Path = round.Path
	}
}

// Worst is the highest value of the rounds; false when there is none.
func (r *Row) Worst(m Metric) (float64, bool) {
	if r == nil || len(r.Values[m]) == 0 {
		return 0, false
	}
	return slices.Max(r.Values[m]), true
}

// Median is that of the rounds; false when there is no value.
func (r *Row) Median(m Metric) (float64, bool) {
	if r == nil || len(r.Values[m]) == 0 {
		return 0, false
	}
	return Median(r.Values[m]), true
}

// Row returns the row of a carrier under a condition, nil when there is none. A nil
// Part has none.
func (p *Part) Row(carrier string, x float64) *Row {
	if p == nil {
		return nil
	}
	for i := range p.Rows {
		if r := &p.Rows[i]; r.Carrier == carrier && r.X == x {
			return r
		}
	}
	return nil
}

// At returns the row of a carrier under a condition, a new one when there is none.
func (p *Part) At(carrier string, x float64) *Row {
	if r := p.Row(carrier, x); r != nil {
		return r
	}
	p.Rows = append(p.Rows, Row{Carrier: carrier, X: x})
	return &p.Rows[len(p.Rows)-1]
}

// Ratio is the median of the rounds' ratios of a to b: what disturbs the machine
// for a while disturbs both. It is false unless both have the same number of
// rounds.
func Ratio(a, b *Row, m Metric) (float64, bool) {
	if a == nil || b == nil || len(a.Values[m]) == 0 || len(a.Values[m]) != len(b.Values[m]) {
		return 0, false
	}
	var ratios []float64
	for i, v := range a.Values[m] {
		if b.Values[m][i] == 0 {
			return 0, false
		}
		ratios = append(ratios, v/b.Values[m][i])
	}
	return Median(ratios), true
}

// Median returns the middle value, of an even number the upper one; 0 of none.
func Median(v []float64) float64 { return Quantile(slices.Sorted(slices.Values(v)), 0.5) }

// Quantile of sorted values, 0 of none.
func Quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[int(q*float64(len(sorted)-1)+0.5)]
}

// Load reads a report that Save wrote; there being none gives an empty one.
func Load(path string) (Report, error) {
	r := Report{Parts: map[string]*Part{}}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err != nil {
		return r, fmt.Errorf("read report: %w", err)
	}
	for name, p := range r.Parts {
		if p == nil || !slices.Contains(Parts(), name) {
			return r, fmt.Errorf("%w: %s: part %q", ErrReport, path, name)
		}
	}
	return r, nil
}

// save writes the report for Load.
func (r Report) save(path string) error {
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return writeFile(path, append(b, '\n'))
}

func writeFile(path string, b []byte) error {
	if err := os.WriteFile(path+".new", b, 0o644); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}
