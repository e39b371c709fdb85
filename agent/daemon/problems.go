package daemon

import (
	"context"

	"edgemesh/agent/control"
	"edgemesh/agent/mesh"
)

// problems are what status tells of this host: why the membership is an old one, and
// kernel state or the plugin's files are not as they should be, other networks inside the
// cluster's ranges, and what else was found in the way at the last look.
func (d *daemon) problems() []control.Finding {
	plan, problem := d.current()
	d.mu.Lock()
	hostErr, waits, inWay := d.hostErr, d.waits, d.inWay
	d.mu.Unlock()
	var out []control.Finding
	if f := d.checkMembership(plan, problem); f.Severity != control.OK {
		out = append(out, f)
	}
	if hostErr != nil {
		out = append(out, control.Brokenf("host", "see the cause; the agent retries every 2 s", "the last repair failed: %v", hostErr))
	}
	if waits != nil {
		out = append(out, control.Brokenf("cni", "see the cause; the agent looks again every 30 s", "%v", waits))
	}
	if f := d.checkOverlaps(plan.Host); f.Severity != control.OK {
		out = append(out, f)
	}
	out = append(out, inWay...)
	for i := range out {
		out[i].Detail = oneLine(out[i].Detail)
	}
	return out
}

// warnHost logs, at the start, what on this host is in the way of the pod network.
func (d *daemon) warnHost(ctx context.Context, plan mesh.Plan) {
	found := d.host.Warnings(ctx, plan.Host)
	d.noteHost(found)
	for _, f := range found {
		if f.Check != "ipv6" && f.Check != "lan" { // told by the host itself
			d.log.Warn("this host is in the pod network's way", "check", f.Check, "found", oneLine(f.Detail), "remedy", f.Remedy)
		}
	}
}

// noteHost keeps for status what a look at the host found.
func (d *daemon) noteHost(found []control.Finding) {
	d.mu.Lock()
	d.inWay = found
	d.mu.Unlock()
}
