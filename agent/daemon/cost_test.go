package daemon

import (
	"strings"
	"testing"
	"time"

	"edgemesh/internal/config"
	"edgemesh/internal/upkeep"
)

// What nobody asked for is shown by purpose and as a month's rate, and is a finding on metered uplinks, once the rate is known.
func TestCost(t *testing.T) {
	b := upkeep.New()
	b.Add(upkeep.NAT, 60_000, 40_000)
	b.Add(upkeep.API, 300_000, 100_000)
	none := func() map[string]string { return nil }
	later := b.Since.Add(time.Hour)
	u := upkeepOf(b, newMetered(config.MeteredYes, none), later)
	if u.TxBytes != 360_000 || u.RxBytes != 140_000 || u.Purposes["nat"].Tx != 60_000 || u.MBPerMonth == nil || *u.MBPerMonth < 359 || *u.MBPerMonth > 361 {
		t.Errorf("%+v", u)
	}
	if f := checkUpkeep(u); len(f) != 1 || !strings.Contains(f[0].Text, "360 MB a month") || !strings.Contains(f[0].Text, "most of it for api") {
		t.Errorf("%+v", f)
	}
	early := upkeepOf(b, newMetered(config.MeteredYes, none), later.Add(-time.Minute))
	if f := checkUpkeep(early); early.MBPerMonth != nil || len(f) > 0 {
		t.Errorf("early: %+v, %+v", early, f)
	}
	if f := checkUpkeep(upkeepOf(b, newMetered(config.MeteredNo, none), later)); len(f) > 0 {
		t.Errorf("not metered: %+v", f)
	}
}
