package matrix

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// DataFile has all that was measured.
const DataFile = "results.json"

// Round is one carrier's turn in one cell.
type Round struct {
	Mbps         float64 `json:"mbps"`                    // downwards, payload
	UpMbps       float64 `json:"upMbps,omitempty"`        // of the upload beside it
	IdleMs       float64 `json:"idleMs"`                  // median of pings before the flow
	PingMs       float64 `json:"pingMs"`                  // median beside the flow
	Ping99Ms     float64 `json:"ping99Ms"`                // 99th percentile beside the flow
	VoiceLost    float64 `json:"voiceLost,omitempty"`     // share
	VoiceJitter  float64 `json:"voiceJitterMs,omitempty"` // as in RFC 3550
	Short100KB   float64 `json:"short100kBMs,omitempty"`  // a transfer of 100 kB on the idle path
	Short1MB     float64 `json:"short1MBMs,omitempty"`
	Timeouts     int     `json:"timeouts,omitempty"` // of TCP in the pods, beside the flows, and how many of them were spurious
	Spurious     int     `json:"spurious,omitempty"`
	Stolen       float64 `json:"stolen,omitempty"` // share of the machine that others had meanwhile
	CarrierState string  `json:"path,omitempty"`
}

// Row is a cell's rounds, by carrier.
type Row struct {
	Cell   string             `json:"cell"`
	Rounds map[string][]Round `json:"rounds"`
}

// Results are rows in the order of Cells.
type Results struct {
	Taken    time.Time     `json:"taken"`
	Took     time.Duration `json:"tookNs"`
	Machine  string        `json:"machine"`
	Carriers []string      `json:"carriers"`
	Sources  string        `json:"sources,omitempty"` // hash of what was measured, and with what
	Rows     []*Row        `json:"rows"`
}

// Row returns the cell's row, which it makes if need be.
func (r *Results) Row(cell string) *Row {
	for _, row := range r.Rows {
		if row.Cell == cell {
			return row
		}
	}
	row := &Row{Cell: cell, Rounds: make(map[string][]Round)}
	r.Rows = append(r.Rows, row)
	return row
}

// Resume takes over what an earlier run measured, whole turns of all carriers, unless it measured something else or has all rounds.
func (r *Results) Resume(old Results, rounds int) {
	if old.Sources != r.Sources || !slices.Equal(old.Carriers, r.Carriers) {
		return
	}
	more := false
	for _, row := range old.Rows {
		n := rounds
		for _, c := range r.Carriers {
			n = min(n, len(row.Rounds[c]))
		}
		more = more || n < rounds
		for c, all := range row.Rounds {
			row.Rounds[c] = all[:min(n, len(all))]
		}
	}
	if more {
		r.Rows, r.Taken, r.Took = old.Rows, old.Taken, old.Took
	}
}

// Median of one value over a carrier's rounds; false if there is none.
func (r *Row) Median(carrier string, value func(Round) float64) (float64, bool) {
	var vs []float64
	for _, round := range r.Rounds[carrier] {
		vs = append(vs, value(round))
	}
	if len(vs) == 0 {
		return 0, false
	}
	return median(vs), true
}

// median of an even number is between the middle two: neither round is left out.
func median(vs []float64) float64 {
	slices.Sort(vs)
	return (vs[(len(vs)-1)/2] + vs[len(vs)/2]) / 2
}

// LoadResults reads a directory's results; none there are no error.
func LoadResults(dir string) (Results, error) {
	var r Results
	b, err := os.ReadFile(filepath.Join(dir, DataFile))
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return r, fmt.Errorf("%s: %w", DataFile, err)
	}
	return r, nil
}

// Write writes data and page.
func (r *Results) Write(dir string) error {
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return fmt.Errorf("encode results: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, DataFile), append(b, '\n'), 0o644),
		os.WriteFile(filepath.Join(dir, "README.md"), []byte(r.Markdown()), 0o644),
	)
}
