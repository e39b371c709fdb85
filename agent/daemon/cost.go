package daemon

import (
	"time"

	"edgemesh/agent/control"
	"edgemesh/agent/findings"
	"edgemesh/internal/upkeep"
)

const (
	// meteredMonth is what an idle node may cost on a metered uplink, in MB a month, judgedAfter how long its rate is not known yet:
	// a start is dear.
	meteredMonth = 100
	judgedAfter  = time.Hour
	month        = 30 * 24 * time.Hour
)

// upkeepOf is what a node has sent and received without a pod asking for it.
func upkeepOf(b *upkeep.Budget, m *metered, now time.Time) *control.Upkeep {
	cost := m.now.Load()
	u := &control.Upkeep{Since: b.Since, Purposes: map[string]control.UpkeepBytes{}, Carried: control.UpkeepBytes(b.Carried()), Metered: cost.paid, MeteredFrom: cost.from}
	for p, n := range b.Sums() {
		u.Purposes[string(p)] = control.UpkeepBytes(n)
		u.TxBytes += n.Tx
		u.RxBytes += n.Rx
	}
	if age := now.Sub(b.Since); age >= judgedAfter {
		rate := float64(u.TxBytes+u.RxBytes) / 1e6 * float64(month) / float64(age)
		u.MBPerMonth = &rate
	}
	return u
}

// checkUpkeep names an idle cost that a metered uplink is charged for.
func checkUpkeep(u *control.Upkeep) []findings.Finding {
	if !u.Metered || u.MBPerMonth == nil || *u.MBPerMonth <= meteredMonth {
		return nil
	}
	dear, most := "", uint64(0)
	for p, n := range u.Purposes {
		if sum := n.Tx + n.Rx; sum > most {
			dear, most = p, sum
		}
	}
	return []findings.Finding{findings.Notef("upkeep", "this node's own traffic takes %.0f MB a month of a metered uplink (by %s), most of it for %s: relays or peers of "+
		"releases up to 0.2, membership from the API without a controller, or peers that come and go", *u.MBPerMonth, u.MeteredFrom, dear)}
}
