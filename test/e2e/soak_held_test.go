package e2e

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"edgemesh/test/lab"
)

// holdings is what agents and relays that are never restarted held over time, and what the kernel did for them.
type holdings struct {
	start time.Time
	at    []time.Duration
	held  map[string][]float64 // by who and what
}

// room is what each thing may grow by while the soak lasts, as a part of the median and beside that.
var room = map[string][2]float64{ //nolint:gochecknoglobals // a constant
	"goroutines": {0.2, 30}, "descriptors": {0.2, 10}, "RSS, MB": {0.15, 8}, "heap, MB": {0.3, 6}, "conntrack": {0.5, 200},
}

// look notes what is held now.
func (w *holdings) look(t *testing.T, s *soak) {
	t.Helper()
	if w.held == nil {
		w.held = map[string][]float64{}
	}
	note := func(who, what string, v float64) { w.held[who+" "+what] = append(w.held[who+" "+what], v) }
	for _, n := range []*lab.Node{s.nodes[0], s.nodes[2]} {
		text, err := n.Run(t.Context(), "curl", "-sf", "http://"+n.Config.MetricsAddress+"/metrics")
		ok(t, err)
		note(n.Name, "goroutines", metric(t, text, "go_goroutines"))
		note(n.Name, "heap, MB", metric(t, text, "go_memstats_heap_inuse_bytes")/1e6)
		w.process(t, n.Name, n.Agent.PID())
		w.conntrack(t, n.Name, n.NS)
	}
	relay := s.lab.Relays[1]
	w.process(t, "relay-2", relay.Process.PID())
	for i, site := range s.lab.Sites {
		w.conntrack(t, fmt.Sprintf("router-%d", i+1), site.Router)
	}
	w.at = append(w.at, time.Since(w.start))
}

// process notes what the kernel knows of a process.
func (w *holdings) process(t *testing.T, who string, pid int) {
	t.Helper()
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	ok(t, err)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	ok(t, err)
	_, rss, _ := strings.Cut(string(status), "VmRSS:")
	kB, err := strconv.ParseFloat(strings.Fields(rss)[0], 64)
	ok(t, err)
	w.held[who+" descriptors"] = append(w.held[who+" descriptors"], float64(len(fds)))
	w.held[who+" RSS, MB"] = append(w.held[who+" RSS, MB"], kB*1024/1e6)
}

// conntrack notes how many connections a namespace's kernel remembers.
func (w *holdings) conntrack(t *testing.T, who string, ns *lab.NS) {
	t.Helper()
	out, err := ns.Run(t.Context(), "cat", "/proc/sys/net/netfilter/nf_conntrack_count")
	ok(t, err)
	n, err := strconv.ParseFloat(strings.TrimSpace(out), 64)
	ok(t, err)
	w.held[who+" conntrack"] = append(w.held[who+" conntrack"], n)
}

// last is the last look, in a line.
func (w *holdings) last() string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(w.held)) {
		out = append(out, fmt.Sprintf("%s %.0f", name, w.held[name][len(w.held[name])-1]))
	}
	return strings.Join(out, ", ")
}

// flat wants nothing to grow with time, judged by what came after the first quarter, ten minutes at most.
func (w *holdings) flat(t *testing.T, duration time.Duration) {
	t.Helper()
	first := 0
	for first < len(w.at) && w.at[first] < min(duration/4, 10*time.Minute) {
		first++
	}
	if len(w.at)-first < 10 {
		t.Logf("%d looks are too few to tell whether anything grows", len(w.at)-first)
		return
	}
	for _, name := range slices.Sorted(maps.Keys(w.held)) {
		mid, grows := trend(w.at[first:], w.held[name][first:])
		_, what, _ := strings.Cut(name, " ")
		least, most := slices.Min(w.held[name][first:]), slices.Max(w.held[name][first:])
		may := room[what][0]*mid + room[what][1]
		t.Logf("%-24s median %6.1f, %6.1f to %6.1f, grows by %+.1f in all, may by %+.1f", name, mid, least, most, grows, may)
		if grows > may {
			t.Errorf("%s grows", name)
		}
	}
}

// trend is the median, and what a line rises by from the first to the last whose slope is the median of those between every
// two values (Theil-Sen). A line of least squares rose by a tenth of the 256 sockets with which an agent guesses ports for a
// second, because one look late in the hour saw them.
func trend(at []time.Duration, values []float64) (mid, rise float64) {
	var slopes []float64
	for i := range values {
		for j := range i {
			if d := (at[i] - at[j]).Seconds(); d > 0 {
				slopes = append(slopes, (values[i]-values[j])/d)
			}
		}
	}
	return median(values), median(slopes) * (at[len(at)-1] - at[0]).Seconds()
}

// The trend of a line is its rise, and that of noise, or of one value that is far off, is near none.
func TestTrend(t *testing.T) {
	var at []time.Duration
	var line, flat []float64
	for i := range 101 {
		at = append(at, time.Duration(i)*time.Second)
		line, flat = append(line, float64(2*i)), append(flat, float64(10+i%2))
	}
	if mid, rise := trend(at, line); mid != 100 || rise < 199.9 || rise > 200.1 {
		t.Errorf("a line: %f, %f", mid, rise)
	}
	if _, rise := trend(at, flat); rise > 1 || rise < -1 {
		t.Errorf("noise rises by %f", rise)
	}
	flat[95] = 300
	if mid, rise := trend(at, flat); mid > 11 || rise > 1 || rise < -1 {
		t.Errorf("one value far off: %f, rises by %f", mid, rise)
	}
}

// metric reads one number without labels.
func metric(t *testing.T, text, name string) float64 {
	t.Helper()
	for line := range strings.Lines(text) {
		if v, found := strings.CutPrefix(line, name+" "); found {
			f, err := strconv.ParseFloat(strings.TrimSpace(v), 64)
			ok(t, err)
			return f
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}
