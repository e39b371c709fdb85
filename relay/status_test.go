package main

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"edgemesh/internal/cli"
	"edgemesh/test/fair"
)

// ids are those of findings, except for what the machine of the test lacks.
func (r report) ids() (out []string) {
	for _, f := range r.Findings {
		if !slices.Contains([]string{"bbr", "udp-buffers", "cpus"}, f.ID) {
			out = append(out, f.ID+" "+f.Severity)
		}
	}
	return out
}

// asked runs status as an operator does.
func (r *running) asked(args ...string) (code int, out string) {
	r.t.Helper()
	var stdout, stderr strings.Builder
	code = cli.Execute(r.t.Context(), newRoot(), append([]string{"status", "--state-dir", filepath.Join(r.dir, "state")}, args...), &stdout, &stderr)
	return code, stdout.String() + stderr.String()
}

func (r *running) status() (out report) {
	r.t.Helper()
	code, text := r.asked("--json")
	if err := json.Unmarshal([]byte(text), &out); err != nil || code != 0 {
		r.t.Fatalf("exit code %d, %v: %s", code, err, text)
	}
	return out
}

func TestStatus(t *testing.T) {
	a, stranger := newNode(t), newNode(t)
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "cluster.yaml"), clusterYAML(a))
	r := runRelay(t, dir)
	if err := r.reserve(a); err != nil {
		t.Fatal(err)
	}
	if err := r.reserve(stranger); err == nil {
		t.Fatal("a stranger got a reservation")
	}
	s := r.status()
	if s.PeerID != r.info.ID.String() || s.Members != 1 || s.Reserved != 1 || s.Load.Memory == 0 || s.Membership.Seen == nil || time.Since(s.Since) < 0 ||
		len(s.Addresses) != 1 || !strings.HasSuffix(s.Addresses[0], "/p2p/"+s.PeerID) || s.Limits.Descriptors == 0 || s.Limits.Open == 0 {
		t.Errorf("%+v", s)
	}
	refused := uint64(0)
	for _, n := range s.Refused {
		refused += n
	}
	if refused == 0 {
		t.Errorf("nothing is refused: %v", s.Refused)
	}
	if got := s.ids(); !slices.Equal(got, []string{"not-listed warning", "address warning"}) {
		t.Errorf("%v", got)
	}
	code, text := r.asked("--check")
	if code != 0 || !strings.HasPrefix(text, "TROUBLE: the membership does not list this relay") || !strings.Contains(text, "members    1 known") {
		t.Errorf("exit code %d: %s", code, text)
	}

	r.write(clusterYAML(a) + "relays: [" + s.Addresses[0] + "]\n")
	fair.Eventually(t, deadline, "the relay listed", fair.True(func() bool { return r.status().Membership.Listed }))
	r.write("nodes: broken\n")
	fair.Eventually(t, deadline, "a membership that cannot be read", fair.True(func() bool { return r.status().Membership.Error != "" }))
	if s := r.status(); s.Membership.Failed == nil || s.Membership.Seen == nil || slices.Contains(s.ids(), "membership broken") {
		t.Errorf("%+v", s.Membership)
	}
	r.write(clusterYAML())
	fair.Eventually(t, deadline, "no members", fair.True(func() bool { return slices.Contains(r.status().ids(), "no-members broken") }))
	if s := r.status(); s.Membership.Failed != nil || s.Membership.Error != "" {
		t.Errorf("after a good one: %+v", s.Membership)
	}
	if code, text := r.asked("--check"); code != cli.ExitFailed || !strings.HasPrefix(text, "TROUBLE: the membership has no members") {
		t.Errorf("exit code %d: %s", code, text)
	}
	r.stop()
	if code, text := r.asked(); code != cli.ExitFailed || !strings.HasPrefix(text, "TROUBLE: no relay is running here") {
		t.Errorf("exit code %d: %s", code, text)
	}
	if code, text := r.asked("--json"); code != cli.ExitFailed || !strings.HasPrefix(text, program+": no relay is running here") {
		t.Errorf("exit code %d: %s", code, text)
	}
}

func TestJudge(t *testing.T) {
	now := time.Now()
	ago := func(d time.Duration) *time.Time { at := now.Add(-d); return &at }
	well := report{Members: 2, Membership: reads{Listed: true}, Limits: limits{Reservations: 100, Circuits: 100, Descriptors: 1024}}
	for name, c := range map[string]struct {
		change  func(*report)
		hung    error
		private bool
		free    bool
		want    string
	}{
		"well":                       {},
		"hung":                       {hung: errors.New("membership hangs"), want: "hung broken"},
		"credentials that ended":     {change: func(r *report) { r.Membership.Failed, r.Membership.Error = ago(2*time.Minute), "Unauthorized" }, want: "membership warning"},
		"credentials":                {change: func(r *report) { r.Credentials = &lifetime{ago(-20 * 24 * time.Hour)} }, want: "credentials note"},
		"credentials that end soon":  {change: func(r *report) { r.Credentials = &lifetime{ago(-24 * time.Hour)} }, want: "credentials warning"},
		"credentials without an end": {change: func(r *report) { r.Credentials = &lifetime{} }, want: "credentials note"},
		"one read that failed":       {change: func(r *report) { r.Membership.Failed, r.Membership.Error = ago(time.Second), "timeout" }},
		"nobody":                     {change: func(r *report) { r.Members = 0 }, want: "no-members broken"},
		"nobody, with a join secret": {change: func(r *report) { r.Members = 0 }, free: true},
		"unlisted":                   {change: func(r *report) { r.Membership.Listed = false }, want: "not-listed warning"},
		"private":                    {private: true, want: "address warning"},
		"reservations":               {change: func(r *report) { r.Reserved = 90 }, want: "reservations warning"},
		"circuits":                   {change: func(r *report) { r.Circuits = 100 }, want: "circuits warning"},
		"descriptors":                {change: func(r *report) { r.Limits.Open = 1000 }, want: "descriptors warning"},
		"descriptors unknown":        {change: func(r *report) { r.Limits.Open, r.Limits.Descriptors = 1000, 0 }},
	} {
		r := well
		if c.change != nil {
			c.change(&r)
		}
		r.Findings = r.judge(c.hung, !c.private, c.free, now)
		if got := strings.Join(r.ids(), ", "); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
