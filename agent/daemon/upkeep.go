package daemon

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"edgemesh/agent/control"
	"edgemesh/cni/conf"
	"edgemesh/cni/ipam"
	"edgemesh/cni/upkeep"
)

// reconcileEvery is how often the plugin's records are compared with the pods'
// interfaces. It is longer than the time the store gives an ADD under way.
const reconcileEvery = 5 * time.Minute

// reconcile stands in for the plugin's GC, which runtimes that know no version
// 1.1.0 never call: after a power cut most pods vanish without DEL.
func reconcile(ctx context.Context, pods *conf.NetConf, log *slog.Logger) {
	told := ""
	for {
		told = reconcileOnce(pods, told, log)
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

// pools tells how full the node's blocks are, per family. It is empty while
// there is no subnet file, and when the records cannot be read.
func pools(c *conf.NetConf, log *slog.Logger) []control.Pool {
	usage, err := upkeep.Usage(c)
	if err != nil && !errors.Is(err, conf.ErrNoSubnet) {
		log.Warn("the use of pod addresses is unknown", "dataDir", c.DataDir, "err", err)
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
