package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"edgemesh/internal/cli"
	"edgemesh/internal/logs"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/screen"
	"edgemesh/internal/version"
	"edgemesh/internal/wake"
	"edgemesh/internal/wording"
	"edgemesh/tunnel/p2p/carrier/socket"
)

// statusPath is where the relay's socket has the report.
const statusPath = "/v1/status"

// report is what status shows.
type report struct {
	PeerID      string            `json:"peerID"`
	Version     string            `json:"version"`
	Since       time.Time         `json:"since"`
	Addresses   []string          `json:"addresses"`
	Members     int               `json:"members"`
	Joined      int               `json:"joined"` // connected now by the join secret
	Reserved    int               `json:"reserved"`
	Circuits    int               `json:"circuits"`
	TxBytes     uint64            `json:"txBytes"`
	RxBytes     uint64            `json:"rxBytes"`
	Load        load              `json:"load"`
	Limits      limits            `json:"limits"`
	Membership  reads             `json:"membership"`
	Credentials *lifetime         `json:"credentials,omitempty"` // of a kubeconfig
	Refused     map[string]uint64 `json:"refused"`               // by reason
	Findings    []finding         `json:"findings"`
}

// load is that of half a second.
type load struct {
	CPUs   float64 `json:"cpus"` // processors in use
	Memory uint64  `json:"memoryBytes"`
	Mbit   float64 `json:"mbitPerSecond"` // relayed
}

type limits struct {
	Reservations int `json:"reservations"`
	Circuits     int `json:"circuits"`
	Descriptors  int `json:"descriptors"`
	Open         int `json:"openDescriptors"`
}

// reads are those of the membership.
type reads struct {
	Seen   *time.Time `json:"seen"`             // the last good one; null: none since the start
	Failed *time.Time `json:"failed,omitempty"` // since when none was good
	Error  string     `json:"error,omitempty"`
	Listed bool       `json:"listed"`          // it has this relay, where that matters
	Heard  *time.Time `json:"heard,omitempty"` // when a member last passed on new statements
	From   string     `json:"from,omitempty"`  // who that was
}

type lifetime struct {
	Ends *time.Time `json:"ends"` // null: they do not say
}

// finding has the keys of an agent's.
type finding struct {
	ID       string `json:"id"`
	Severity string `json:"severity"` // broken, warning or note
	Text     string `json:"text"`
	Remedy   string `json:"remedy,omitempty"`
}

const (
	broken, warning, note = "broken", "warning", "note"
	starting              = "starting" // the finding of a relay that does not listen yet
)

// reporter answers on the relay's socket.
type reporter struct {
	c    config
	self peer.ID
	hung func() error
	m    atomic.Pointer[membership] // nil: it does not listen yet
}

// serves reports whether anybody has a reservation here.
func (r *reporter) serves() bool {
	m := r.m.Load()
	return m != nil && m.server.metrics.Reservations() > 0
}

func (r *reporter) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	out := report{PeerID: r.self.String(), Version: version.Number(), Findings: []finding{{starting, broken, "the relay does not listen yet: it reads its membership", "see its log"}}}
	if m := r.m.Load(); m != nil {
		r.fill(q.Context(), &out, m)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(out) // the client may have gone
}

// fill takes half a second.
func (r *reporter) fill(ctx context.Context, out *report, m *membership) {
	const sample = 500 * time.Millisecond
	registry := m.server.metrics.registry
	before := figuresOf(registry)
	wake.Sleep(ctx, sample)
	now := figuresOf(registry)
	addrs, public := m.server.addresses()
	for _, a := range addrs {
		out.Addresses = append(out.Addresses, a.String()+"/p2p/"+out.PeerID)
	}
	relayed := now["edgemesh_relay_bytes_total"] + now["edgemesh_relay_forwarded_bytes_total"]
	was := before["edgemesh_relay_bytes_total"] + before["edgemesh_relay_forwarded_bytes_total"]
	const cpu = "process_cpu_seconds_total"
	out.Since = time.Unix(int64(now["process_start_time_seconds"]), 0)
	out.Members, out.Reserved, out.Circuits = int(now["edgemesh_relay_members"]), m.server.metrics.Reservations(), m.server.metrics.Circuits()
	out.Joined = m.server.proved()
	out.RxBytes, out.TxBytes = uint64(relayed), uint64(relayed) // what comes in goes out
	out.Load = load{(now[cpu] - before[cpu]) / sample.Seconds(), uint64(now["process_resident_memory_bytes"]), (relayed - was) * 8 / 1e6 / sample.Seconds()}
	out.Limits = limits{r.c.limits.MaxReservations, r.c.limits.MaxCircuits, int(now["process_max_fds"]), int(now["process_open_fds"])}
	out.Membership = m.reads()
	if k := r.c.membership.Kubernetes; k != nil && k.Kubeconfig != "" {
		out.Credentials = &lifetime{}
		if end := client.Ends(k.Kubeconfig); !end.IsZero() {
			out.Credentials.Ends = &end
		}
	}
	out.Refused = map[string]uint64{}
	for name, n := range now {
		if reason, is := strings.CutPrefix(name, "edgemesh_relay_refused_total "); is && n > 0 {
			out.Refused[reason] = uint64(n)
		} else if request, is := strings.CutPrefix(name, "edgemesh_relay_requests_total "); is && n > 0 && !strings.HasSuffix(request, " OK") {
			out.Refused[strings.ToLower(strings.ReplaceAll(request, " ", "_"))] = uint64(n)
		}
	}
	out.Findings = out.judge(r.hung(), public, r.c.joinSecretFile != "" || r.c.byStatement(), time.Now())
	for _, f := range socket.Fallbacks() {
		severity := warning
		if f.What == "cpus" {
			severity = note
		}
		out.Findings = append(out.Findings, finding{f.What, severity, f.Effect, f.Remedy})
	}
}

// figuresOf are counters and gauges by name; behind it the values of the labels.
func figuresOf(registry prometheus.Gatherer) map[string]float64 {
	out := map[string]float64{}
	families, _ := registry.Gather() // what failed is missing
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for i := range m.GetLabel() { // sorted by name: type after status
				name += " " + m.GetLabel()[len(m.GetLabel())-1-i].GetValue()
			}
			out[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return out
}

// judge says what is wrong, the worst first.
func (r report) judge(hung error, public, free bool, now time.Time) []finding {
	out := []finding{}
	add := func(wrong bool, id, severity, remedy, text string, args ...any) {
		if wrong {
			out = append(out, finding{id, severity, wording.Sprintf(text, args...), remedy})
		}
	}
	const patience, warnBefore = time.Minute, 10 * 24 * time.Hour
	failed := r.Membership.Failed
	add(hung != nil, "hung", broken, "restart the relay, and report its log", "%v", hung)
	add(failed != nil && now.Sub(*failed) > patience, "membership", warning, "correct what it names",
		"the membership's source reports, for more than a minute: %s", r.Membership.Error)
	if c := r.Credentials; c != nil {
		severity, ends := note, "some day"
		if c.Ends != nil {
			ends = "on " + c.Ends.UTC().Format(time.DateOnly)
			if c.Ends.Sub(now) < warnBefore {
				severity = warning
			}
		}
		add(true, "credentials", severity, formerWay, "the kubeconfig's credentials end %s: from then on this relay does not learn who is a member", ends)
	}
	add(r.Members == 0 && !free, "no-members", broken, "list nodes in the membership", "the membership has no members: nobody is served")
	add(!r.Membership.Listed, "not-listed", warning, "add the addresses to the membership's relays", "the membership does not list this relay: members do not use it")
	add(!public, "address", warning, "set announce: run `edgemesh-relay install --announce ADDRESS`", "no address of this relay is public: members elsewhere cannot reach it")
	near := func(n, most int) bool { return most > 0 && n*10 >= most*9 }
	add(near(r.Reserved, r.Limits.Reservations), "reservations", warning, "raise limits.maxReservations, or add a relay", "%d of %d reservations are taken", r.Reserved, r.Limits.Reservations)
	add(near(r.Circuits, r.Limits.Circuits), "circuits", warning, "raise limits.maxCircuits, or add a relay", "%d of %d circuits are open", r.Circuits, r.Limits.Circuits)
	add(near(r.Limits.Open, r.Limits.Descriptors), "descriptors", warning, "raise LimitNOFILE of the unit", "%d of %d file descriptors are open", r.Limits.Open, r.Limits.Descriptors)
	return out
}

func newStatus() *cobra.Command {
	var stateDir string
	var asJSON, check bool
	c := &cobra.Command{
		Use:   "status",
		Short: "Show whether the relay is well, whom it serves and what limits it",
		Long: `Show whether the running relay is well and, if not, what is wrong and what to do; its
addresses; members that it knows and those that hold a reservation; open circuits; what
was relayed; the load of the last half second; what it refused, by reason. --check
exits with 1 if something is broken.`,
		Example: `  edgemesh-relay status
  edgemesh-relay status --check >/dev/null || echo the relay needs you
  edgemesh-relay status --json | jq .refused`,
		Args: cli.Args(),
		RunE: func(c *cobra.Command, _ []string) error {
			r, err := askStatus(c.Context(), stateDir)
			switch {
			case err != nil && asJSON:
				return err
			case err != nil:
				r.Findings = []finding{{"relay", broken, err.Error(), ""}}
				r.print(c.OutOrStdout())
				return cli.ErrReported
			case asJSON:
				err = cli.JSON(c.OutOrStdout(), r)
			default:
				r.print(c.OutOrStdout())
			}
			if err == nil && check && slices.ContainsFunc(r.Findings, func(f finding) bool { return f.Severity == broken }) {
				return cli.ErrReported
			}
			return err
		},
	}
	c.Flags().StringVar(&stateDir, "state-dir", defaultStateDir, "state directory of the relay")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().BoolVar(&check, "check", false, "exit with 1 if something is broken")
	return c
}

// askStatus asks the relay that runs on stateDir.
func askStatus(ctx context.Context, stateDir string) (r report, err error) {
	socket := filepath.Join(stateDir, relaySocket)
	return r, explain(socket, logs.Call(ctx, socket, http.MethodGet, statusPath, nil, &r))
}

// print shows the verdict, what is wrong, and the figures of a relay that listens.
func (r report) print(w io.Writer) {
	on := screen.Of(w)
	wrong := slices.DeleteFunc(slices.Clone(r.Findings), func(f finding) bool { return f.Severity == note })
	verdict := fmt.Sprintf("OK: %s, %d reserved, %s", wording.Count(r.Members, "member"), r.Reserved, wording.Count(r.Circuits, "circuit"))
	colour := screen.Green
	if len(wrong) > 0 {
		verdict, colour = "TROUBLE: "+wrong[0].Text, screen.Red
		if len(wrong) > 1 {
			verdict += fmt.Sprintf("; and %d more", len(wrong)-1)
		}
	}
	on.Line(w, colour, "", verdict)
	for i, f := range r.Findings {
		text := f.ID
		if i > 0 || f.Severity == note {
			text += ": " + f.Text
		}
		on.Line(w, screen.Plain, fmt.Sprintf("%-9s", f.Severity), text)
		if f.Remedy != "" {
			on.Line(w, screen.Plain, "         → ", f.Remedy)
		}
	}
	if r.Since.IsZero() {
		return
	}
	line := func(name, text string, args ...any) {
		on.Line(w, screen.Plain, fmt.Sprintf("%-11s", name), fmt.Sprintf(text, args...))
	}
	line("relay", "%s, version %s, for %s", r.PeerID, r.Version, wording.Duration(time.Since(r.Since).Truncate(time.Second)))
	line("addresses", "%s", strings.Join(r.Addresses, " "))
	read := "not read since the start"
	if r.Membership.Seen != nil {
		read = "read " + wording.Duration(time.Since(*r.Membership.Seen).Truncate(time.Second)) + " ago"
	}
	if r.Membership.Heard != nil {
		read += ", newest statement heard " + wording.Duration(time.Since(*r.Membership.Heard).Truncate(time.Second)) + " ago from " + r.Membership.From
	}
	line("members", "%d known (%s), %d joined by the secret, %d reserved of %d", r.Members, read, r.Joined, r.Reserved, r.Limits.Reservations)
	line("circuits", "%d of %d; %s relayed, %.1f Mbit/s now", r.Circuits, r.Limits.Circuits, wording.Bytes(r.RxBytes), r.Load.Mbit)
	line("load", "%.2f of %d CPUs, %s, %d of %d file descriptors", r.Load.CPUs, runtime.NumCPU(), wording.Bytes(r.Load.Memory), r.Limits.Open, r.Limits.Descriptors)
	var refused []string
	for _, reason := range slices.Sorted(maps.Keys(r.Refused)) {
		refused = append(refused, fmt.Sprintf("%s %d", reason, r.Refused[reason]))
	}
	line("refused", "%s", wording.List(refused))
}
