package matrix

import "edgemesh/test/bench/report"

// Carriers in the matrix. Cubic and BBR are the flows on the bare link.
const (
	BareBBR   = "bare BBR"
	BareCubic = "bare cubic"
)

// Carriers are all of them, in the order of their turns.
func Carriers() []string { return []string{BareBBR, BareCubic, report.Reference, report.Direct} }

// MoreCarriers may be asked for.
func MoreCarriers() []string { return []string{report.TCP, report.Before} }

// Share is a carrier's rate to that of BBR on the bare link, each round's own; of BareBBR, its rate in Mbit/s.
func Share(row *Row, carrier string) (float64, bool) {
	if carrier == BareBBR {
		return row.Median(carrier, func(r Round) float64 { return r.Mbps })
	}
	bare, own := row.Rounds[BareBBR], row.Rounds[carrier]
	var ratios []float64
	for i := range min(len(bare), len(own)) {
		if bare[i].Mbps > 0 {
			ratios = append(ratios, own[i].Mbps/bare[i].Mbps)
		}
	}
	if len(ratios) == 0 {
		return 0, false
	}
	return median(ratios), true
}
