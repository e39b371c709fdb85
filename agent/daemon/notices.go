package daemon

import (
	"context"
	"time"

	"edgemesh/agent/control"
	"edgemesh/agent/diagnose"
	"edgemesh/internal/wake"
)

// noticeEvery is how often the agent looks for something that is worth an event.
const noticeEvery = time.Minute

// notice records events about what has been wrong for long, where the membership comes from a cluster.
func (d *doctor) notice(ctx context.Context, warn func(reason, message string)) {
	var n diagnose.Notices
	for wake.Sleep(ctx, noticeEvery) {
		for _, x := range n.Due(time.Now(), d.worthNotice(time.Now())) {
			warn(x.Reason, x.Message)
		}
	}
}

// worthNotice are the findings that become events if they last.
func (d *doctor) worthNotice(now time.Time) []control.Finding {
	plan, problem := d.force.plan()
	used, _ := d.reach.peers(false)
	found := append(checkPeers(used), d.checkRefused()...)
	found = append(found, diagnose.Relayed(now, used)...)
	if !plan.Host.Keep {
		found = append(found, diagnose.Pools(pools(d.kernel.pods, d.log))...)
	}
	return oneLined(append(found, checkMembership(plan, problem, d.source.String())))
}
