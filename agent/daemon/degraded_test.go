package daemon

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"edgemesh/tunnel/p2p/carrier/socket"
	"edgemesh/tunnel/tun"
)

type fakeTUN struct {
	tun.Device
	kind     string
	offloads tun.Offloads
}

func (f fakeTUN) Kind() string           { return f.kind }
func (f fakeTUN) Offloads() tun.Offloads { return f.offloads }

func TestDegradations(t *testing.T) {
	if got := degradations(fakeTUN{kind: "fast", offloads: allOffloads}, nil); len(got) != 0 {
		t.Errorf("nothing lacks, and there is %+v", got)
	}
	got := degradations(fakeTUN{kind: "fast", offloads: allOffloads &^ (tun.USO4 | tun.USO6)}, nil)
	if len(got) != 1 || got[0].What != "offloads" || !strings.Contains(got[0].Effect, "csum,tso4,tso6,tso-ecn:") {
		t.Errorf("without USO: %+v", got)
	}
	got = degradations(fakeTUN{kind: "portable"}, []socket.Fallback{{What: "bbr", Effect: "slow", Remedy: "modprobe"}})
	if len(got) != 2 || got[0].What != "bbr" || got[1].What != "offloads" {
		t.Errorf("portable device without BBR: %+v", got)
	}
	var text bytes.Buffer
	reportDegraded(slog.New(slog.NewTextHandler(&text, nil)), got)
	if n := strings.Count(text.String(), "level=WARN"); n != 2 || !strings.Contains(text.String(), "remedy=modprobe") {
		t.Errorf("the log says %s", text.String())
	}
}
