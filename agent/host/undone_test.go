package host

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"edgemesh/agent/findings"
)

// The same repair five times, each soon after the one before, is undone by another program; the finding is gone twice the usual
// time after the last.
func TestUndone(t *testing.T) {
	began := time.Unix(1000, 0)
	for name, c := range map[string]struct {
		every time.Duration
		what  func(n int) string
		times int
		rest  time.Duration // afterwards
		want  bool
	}{
		"every two seconds":         {2 * time.Second, nil, 5, undoneRest, true},
		"four times":                {2 * time.Second, nil, 4, 0, false},
		"every minute":              {time.Minute, nil, 5, 2 * time.Minute, true},
		"seldom":                    {11 * time.Minute, nil, 50, 0, false},
		"another thing each time":   {2 * time.Second, func(n int) string { return strings.Repeat("x", n) }, 50, 0, false},
		"it ended":                  {2 * time.Second, nil, 50, undoneRest + time.Second, false},
		"it ended, and was slow":    {time.Minute, nil, 50, 2*time.Minute + time.Second, false},
		"slow, and it may continue": {time.Minute, nil, 50, time.Minute, true},
	} {
		var u undone
		now := began
		for n := range c.times {
			if n > 0 {
				now = now.Add(c.every)
			}
			what := "set ip_forward"
			if c.what != nil {
				what = c.what(n)
			}
			u.add(now, "bridge", what+" of the bridge")
			u.add(now, "forwarding", what)
			u.add(now, "forwarding", what+" of IPv6")
		}
		all := u.finding(now.Add(c.rest))
		if (len(all) == 1) != c.want || len(all) > 1 {
			t.Errorf("%s: %+v", name, all)
		}
		if c.want && (all[0].ID != "undone" || all[0].Severity != findings.Warning || !all[0].Since.Equal(began) || all[0].Remedy == "" ||
			!strings.HasSuffix(all[0].Text, " and each time the agent did it again: forwarding: set ip_forward; also of bridge")) {
			t.Errorf("%s: %+v", name, all[0])
		}
	}
}

// TestFightsAreLoggedOnce: a program that undoes a repair within milliseconds, forever, does not fill the log.
func TestFightsAreLoggedOnce(t *testing.T) {
	var out strings.Builder
	h := &Host{log: slog.New(slog.NewTextHandler(&out, nil))}
	for range 1000 {
		h.repaired(interfaces, "delete address 169.254.7.7/16 of vethA")
		h.repaired("bridge", "set edgemesh-br up")
	}
	h.repaired("bridge", "set the MTU of edgemesh-br")
	if n := strings.Count(out.String(), "\n"); n != 2*undoneTimes+1 || strings.Count(out.String(), "again only after a pause") != 2 || h.Removed() != 1000 {
		t.Errorf("%d lines, %d removed:\n%s", n, h.Removed(), out.String())
	}
}
