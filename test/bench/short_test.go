package main

import (
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"edgemesh/test/bench/matrix"
	"edgemesh/test/bench/report"
	"edgemesh/test/lab"
)

// TestShortForm measures everything briefly and looks for every row and
// value. How fast anything is it does not judge.
func TestShortForm(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("NOT RUN: ", lab.ErrNotRoot)
	}
	if os.Getenv("EDGEMESH_NOBUILD") == "" {
		if err := lab.Build(); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("./build.sh").CombinedOutput(); err != nil {
			t.Fatalf("build.sh: %v\n%s", err, out)
		}
	}
	dir := t.TempDir()
	r, plan := measureShort(t)
	if whole := checkRows(t, r, plan); whole {
		checkGoals(t, r, plan)
	}
	results, page := filepath.Join(dir, "results"), filepath.Join(dir, "PAGE.md")
	if err := os.WriteFile(page, []byte("above\n"+report.MarkBegin+"\nold\n"+report.MarkEnd+"\nbelow\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(r.Write(results), r.Embed(page, "results")); err != nil {
		t.Fatal(err)
	}
	shown, err := os.ReadFile(page)
	if text := string(shown); err != nil || strings.Contains(text, "old") ||
		!strings.Contains(text, "](results/README.md)") || !strings.HasPrefix(text, "above\n") ||
		!strings.HasSuffix(text, "below\n") {
		t.Errorf("the page is %q, %v", text, err)
	}
}

// measureShort measures all parts, some at a time: what disturbs what does not
// matter here.
func measureShort(t *testing.T) (report.Report, plan) {
	all := report.Report{Parts: map[string]*report.Part{}}
	groups := []string{"clean,packets,requests", "link,edge,hub,idle", "lan,egress,code"}
	out, errs := make([]string, len(groups)), make([]error, len(groups))
	var plan plan
	var wg sync.WaitGroup
	for i, parts := range groups {
		out[i] = t.TempDir()
		o, err := parseOptions([]string{"-short", "-parts", parts, "-out", out[i]})
		if err != nil {
			t.Fatal(err)
		}
		plan = o.plan
		wg.Go(func() { errs[i] = execute(t.Context(), o) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for _, dir := range out {
		r, err := report.Load(filepath.Join(dir, report.DataFile))
		if err != nil {
			t.Fatal(err)
		}
		maps.Copy(all.Parts, r.Parts)
	}
	return all, plan
}

// checkRows wants all rows with all values, greater than 0 except for what may well
// be none. A carrier that is not ours may lack them: the report is not whole then.
func checkRows(t *testing.T, r report.Report, p plan) (whole bool) {
	missing := map[string]bool{}
	want := func(part, carrier string, x float64, metrics ...report.Metric) {
		t.Helper()
		row := r.Parts[part].Row(carrier, x)
		for _, m := range metrics {
			switch v, ok := row.Median(m); {
			case !ok && slices.Contains(p.mayFail, carrier):
				missing[carrier] = true
				t.Logf("%s: %s at %g has no %s: none was measured", part, carrier, x, m)
			case !ok:
				t.Errorf("%s: %s at %g has no %s", part, carrier, x, m)
			case v < 0, v == 0 && (part != report.Edge || x != 0) && m != report.PingLost && m != report.StreamLost && m != report.IdleCPU &&
				m != report.CodeAllocs:
				t.Errorf("%s: %s at %g has %s %g", part, carrier, x, m, v)
			}
		}
	}
	for _, c := range p.carriers {
		want(report.Clean, c, 0, report.FlowGbps, report.FourGbps, report.MachineCPU, report.AnswerTCP,
			report.AnswerUDP, report.PingIdle, report.PingLoad, report.PingLoad99, report.PingLost)
		want(report.Packets, c, 0, report.PacketRate, report.PacketCPU)
		if c != veth && c != vxlan {
			want(report.Clean, c, 0, report.PeakMB, report.TunnelCPU)
			want(report.Packets, c, 0, report.PeakMB)
		}
	}
	for _, c := range p.linkCarriers {
		want(report.Requests, c, 0, report.Kept, report.New, report.SmallRate)
		for _, loss := range linkLosses() {
			want(report.Link, c, loss, report.FlowMbps, report.PingIdle, report.PingLoad, report.PingLoad99,
				report.PingMax, report.PingLost)
		}
		want(report.Link, c, report.StreamLoss, report.StreamLost, report.Jitter, report.StreamFlow)
	}
	for _, c := range p.edgeCarriers {
		for _, x := range edgeRows() {
			want(report.Edge, c, x, report.TunnelMs, report.Switches, report.Frames)
			if x > 1 {
				want(report.Edge, c, x, report.FlowMbps, report.TunnelCPU)
			}
		}
	}
	want(report.Hub, report.Direct, float64(p.edges), report.PeerMB)
	for _, c := range lanCarriers() {
		want(report.LAN, c, 0, report.FlowGbps, report.FourGbps, report.MachineCPU, report.AnswerTCP, report.PingIdle)
	}
	for _, c := range []string{report.Native, report.VXLAN} {
		want(report.LAN, c, 0, report.PathAfter)
	}
	want(report.Idle, report.Direct, float64(p.members), report.IdleMB, report.IdleCPU, report.StartPods,
		report.StartReady)
	for _, w := range egressMethods() {
		for _, n := range p.peers {
			want(report.Egress, w.name, float64(n), report.FlowGbps, report.AnswerTCP, report.ApplyMs)
		}
	}
	for _, name := range []string{
		"tunnel Send/1500", "tunnel Receive/1500", "tunnel/tun Read/fast", "tunnel/tun Write/packet/fast",
	} {
		want(report.Code, name, 0, report.CodeNs, report.CodeAllocs)
	}
	for _, part := range []string{report.Clean, report.LAN} {
		for c, path := range ourPaths() {
			if row := r.Parts[part].Row(c, 0); row != nil && !strings.HasPrefix(row.Path, path) {
				t.Errorf("%s took the path %q", c, row.Path)
			}
		}
	}
	if len(missing) > 1 {
		t.Errorf("others' programs: none of %v could be measured; one may be, on a busy machine", slices.Sorted(maps.Keys(missing)))
	}
	return len(missing) == 0
}

// checkGoals wants a verdict on every promise that the plan measures.
func checkGoals(t *testing.T, r report.Report, p plan) {
	for _, g := range report.Goals() {
		if strings.Contains(g.Name, "1000 members") && p.members != 1000 {
			continue
		}
		if _, verdict := g.Judge(r); verdict == report.Unmeasured {
			t.Errorf("not measured: %s", g.Name)
		}
	}
}

// TestMatrixShort measures one cell of links of every shape, and looks for its values and its row.
func TestMatrixShort(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("NOT RUN: ", lab.ErrNotRoot)
	}
	dir := t.TempDir()
	o, err := parseOptions([]string{"-cells", "^20/2 .* upload", "-cells-always", "-time", "2s", "-out", dir,
		"-carriers", matrix.BareBBR + "," + report.Direct})
	if err != nil {
		t.Fatal(err)
	}
	if err := execute(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	r, err := matrix.LoadResults(dir)
	if err != nil || len(r.Rows) != 1 {
		t.Fatalf("%+v, %v", r, err)
	}
	for _, c := range o.matrix.carriers {
		for _, m := range r.Rows[0].Rounds[c] {
			if m.Mbps <= 0 || m.UpMbps <= 0 || m.IdleMs <= 0 || m.PingMs <= 0 || m.Short1MB <= 0 {
				t.Errorf("%s: %+v", c, m)
			}
		}
		if share, ok := matrix.Share(r.Rows[0], c); !ok || share <= 0 {
			t.Errorf("%s: a share of %g, %t", c, share, ok)
		}
	}
	if page, err := os.ReadFile(filepath.Join(dir, "README.md")); err != nil || string(page) != r.Markdown() ||
		!strings.Contains(string(page), "\n| "+r.Rows[0].Cell+" |") {
		t.Errorf("the page is %s, %v", page, err)
	}
}
