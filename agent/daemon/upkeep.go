package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"edgemesh/agent/cniconf"
	"edgemesh/agent/control"
	"edgemesh/agent/mesh"
	"edgemesh/cni/conf"
	"edgemesh/cni/ipam"
	"edgemesh/cni/upkeep"
)

// reconcileEvery is how often the plugin's records are compared with the pods'
// interfaces. It is longer than the time the store gives an ADD under way.
const reconcileEvery = 5 * time.Minute

// reconcile stands in for the plugin's GC, which runtimes that know no version
// 1.1.0 never call: after a power cut most pods vanish without DEL.
func (d *daemon) reconcile(ctx context.Context) {
	told := ""
	for {
		told = reconcileOnce(d.pods, told, d.log)
		select {
		case <-ctx.Done():
			return
		case <-time.After(reconcileEvery):
		}
	}
}

// reconcileOnce logs what it did, nothing when there was nothing to do, and an
// error that is not told already. It returns the error now told.
func reconcileOnce(c *conf.NetConf, told string, log *slog.Logger) string {
	freed, restored, err := upkeep.Reconcile(c)
	if freed > 0 || restored > 0 {
		log.Info("records of pod addresses put right", "freed", freed, "restored", restored)
	}
	if err == nil {
		return ""
	}
	if err.Error() != told {
		log.Warn("records of pod addresses cannot be compared with the pods that exist", "dataDir", c.DataDir, "err", err)
	}
	return err.Error()
}

// serving tells why this node's pods, or those to come, have no network: hostErr,
// or what the plugin's STATUS would say. Runtimes call that only from
// specification 1.1.0 on.
func (d *daemon) serving(plan mesh.Plan, hostErr error) error {
	if hostErr != nil || plan.Host.Keep {
		return hostErr
	}
	d.mu.Lock()
	err := d.waits
	d.mu.Unlock()
	if !errors.Is(err, cniconf.ErrWaits) {
		err = upkeep.Status(d.pods)
	}
	if err == nil {
		return nil
	}
	return fmt.Errorf("new pods get no network: %w", err)
}

// pools tells how full the node's blocks are, per family. It is empty while
// there is no subnet file, and when the records cannot be read.
func (d *daemon) pools() []control.Pool {
	usage, err := upkeep.Usage(d.pods)
	if err != nil && !errors.Is(err, conf.ErrNoSubnet) {
		d.log.Warn("the use of pod addresses is not known", "err", err)
		return []control.Pool{}
	}
	return poolStatus(usage)
}

// poolStatus never is nil: status prints a list.
func poolStatus(usage []ipam.Usage) []control.Pool {
	out := []control.Pool{}
	for _, u := range usage {
		p := control.Pool{Blocks: texts(u.Blocks), Size: u.Size, Used: u.Used, Kept: u.Kept}
		if !u.Oldest.IsZero() {
			p.Oldest = &u.Oldest
		}
		out = append(out, p)
	}
	return out
}
