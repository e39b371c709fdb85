package explain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"edgemesh/agent/control"
	"edgemesh/agent/findings"
	"edgemesh/internal/cause"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/wording/wordingtest"
)

// fake is an agent of the node self; open is what answers.
type fake struct {
	self    mesh.Node
	members []mesh.Node
	kernel  []findings.Finding
	traced  [2]netip.Addr // a pod here and a far one, whose packets were sent
	deny    []netip.Prefix
	open    func() (Stream, error)
	drops   uint64
	dropsBy map[string]uint64
}

// Counters have units, and what was not dropped has no reasons.
func TestCounters(t *testing.T) {
	for _, c := range []struct {
		agent fake
		want  string
	}{
		{fake{}, "123 MB sent, 0 B received, 0 B more past the tunnel; 0 packets dropped"},
		{fake{drops: 1234, dropsBy: map[string]uint64{"queue": 1233, "mtu": 1}}, "past the tunnel; 1,234 packets dropped: mtu 1 and queue 1,233"},
	} {
		if got := (end{agent: &c.agent}).counters().Text; !strings.HasSuffix(got, c.want) {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

func (f *fake) Plan() (mesh.Plan, findings.Finding) {
	p := mesh.Plan{Self: f.self, Nodes: f.members}
	p.Host.Access.PodDenyCIDRs = f.deny
	return p, findings.Okayf("membership", "fine")
}
func (f *fake) Peer(mesh.Node) control.PeerStatus {
	return control.PeerStatus{Path: "relayed", Transport: "quic", Reason: "why", TxBytes: 123000000, Drops: f.drops, DropsBy: f.dropsBy}
}
func (f *fake) Ping(context.Context, mesh.Node) (time.Duration, string, error) {
	return time.Millisecond, "relayed over quic", nil
}
func (f *fake) Host(_ context.Context, own, far netip.Addr) []findings.Finding {
	f.traced = [2]netip.Addr{own, far}
	return f.kernel
}
func (f *fake) Policy(_, to netip.Addr) findings.Finding        { return findings.Okayf("policy", "%s", to) }
func (f *fake) HasPod(netip.Addr) (bool, error)                 { return false, nil }
func (f *fake) Open(context.Context, mesh.Node) (Stream, error) { return f.open() }

// pipe is one end of a stream.
type pipe struct{ net.Conn }

func (p pipe) CloseWrite() error { return p.Close() }
func (p pipe) Reset()            { p.Close() }

func member(name, block string) mesh.Node {
	return mesh.Node{Name: name, PeerID: mesh.PeerID("id-" + name), PodCIDRs: []netip.Prefix{netip.MustParsePrefix(block)}}
}

// queried makes "a" query "b", whose agent is far, and returns one line per finding.
func queried(t *testing.T, answers *Answers, q query) string {
	t.Helper()
	near := &fake{open: func() (Stream, error) {
		ours, theirs := net.Pipe()
		go func() { _ = answers.Answer(t.Context(), "id-a", pipe{theirs}) }()
		return pipe{ours}, nil
	}}
	all, err := fetch(t.Context(), near, member("b", "10.244.2.0/24"), q)
	out := []string{fmt.Sprint(err)}
	for _, f := range all {
		out = append(out, fmt.Sprintf("%s %s: %s", f.Severity, f.ID, f.Text))
	}
	return strings.Join(out, "\n")
}

func contains(t *testing.T, name, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("%s: nothing of %q in:\n%s", name, p, text)
		}
	}
}

// The far end reports to the querying member about their pair, and nothing else.
func TestFarSide(t *testing.T) {
	far := &fake{self: member("b", "10.244.2.0/24"), members: []mesh.Node{member("a", "10.244.1.0/24"), member("c", "10.244.3.0/24")}}
	pair := query{From: "10.244.1.1", To: "10.244.2.7"}
	contains(t, "well", queried(t, NewAnswers(far), pair), "ok owner: 10.244.2.7 is this node's, 10.244.1.1 is a's", "ok policy", "ok path: relayed over quic; not better: why",
		"broken pod: no pod of this node has the address 10.244.2.7")
	if want := [2]netip.Addr{netip.MustParseAddr("10.244.2.7"), netip.MustParseAddr("10.244.1.254")}; far.traced != want { // a pod's, for no pod has 10.244.1.1
		t.Errorf("packets were sent between %v, want %v", far.traced, want)
	}

	far.kernel = []findings.Finding{findings.Okayf("tun", "up"), findings.Warningf("nftables", "let it pass", "dropped: pods may be unreachable")}
	far.deny = []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}
	contains(t, "in the way", queried(t, NewAnswers(far), pair), "warning nftables: dropped", "warning policy: podDenyCIDRs has 10.244.1.0/24")

	for q, says := range map[query]string{
		{From: "10.244.1.1", To: "10.244.3.7"}:   "broken owner: 10.244.3.7 is not in this node's blocks",
		{From: "10.244.9.1", To: "10.244.2.7"}:   "broken owner: 10.244.9.1 is not in the blocks 10.244.1.0/24 that a has here",
		{From: "10.244.3.1", To: "10.244.2.7"}:   "broken owner: 10.244.3.1 is not in the blocks",
		{From: "10.244.1.1", To: "rubbish"}:      errOther.Error(),
		{From: "fe80::1%eth0", To: "10.244.2.7"}: errOther.Error(),
	} {
		got := queried(t, NewAnswers(far), q)
		contains(t, fmt.Sprint(q), got, says)
		if strings.Contains(got, "counters") {
			t.Errorf("%v: reported more than that the memberships differ:\n%s", q, got)
		}
	}
}

// A member that queries again and again has to wait; others are answered.
func TestQuestionsAreBounded(t *testing.T) {
	far := &fake{self: member("b", "10.244.2.0/24"), members: []mesh.Node{member("a", "10.244.1.0/24"), member("c", "10.244.3.0/24")}}
	answers := NewAnswers(far)
	q := query{From: "10.244.1.1", To: "10.244.2.1"}
	var refused bool
	for range 4 * queryBurst {
		refused = refused || strings.Contains(queried(t, answers, q), errOften.Error())
	}
	if !refused {
		t.Error("nothing is refused")
	}
	if _, err := answers.look(t.Context(), "id-c", query{From: "10.244.3.1", To: "10.244.2.1"}); err != nil {
		t.Errorf("another member: %v", err)
	}
	if _, err := answers.look(t.Context(), "id-x", q); !errors.Is(err, errOther) {
		t.Errorf("not a member: %v", err)
	}
	far.members = far.members[1:]
	for range 2 {
		_, _ = answers.look(t.Context(), "id-c", query{From: "10.244.3.1", To: "10.244.2.1"})
	}
	if len(answers.often) > 1 {
		t.Errorf("who is no longer a member is remembered: %d", len(answers.often))
	}
}

// What a hostile or an older agent answers is bounded.
func TestAnswersAreBounded(t *testing.T) {
	many := reply{}
	for range 1000 {
		many.Findings = append(many.Findings, findings.Finding{ID: "x", Severity: "urgent"})
	}
	few, err := json.Marshal(many)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		text string
		want int
		fail bool
	}{
		"a hundred megabytes": {text: `{"findings":[{"detail":"` + strings.Repeat("x", 100<<20), fail: true},
		"rubbish":             {text: "\x00\x01rubbish", fail: true},
		"nothing":             {fail: true},
		"many":                {text: string(few), want: maxFindings},
	} {
		a := &fake{open: func() (Stream, error) {
			ours, theirs := net.Pipe()
			go func() {
				_, _ = theirs.Read(make([]byte, maxQuery))
				_, _ = theirs.Write([]byte(c.text))
				theirs.Close()
			}()
			return pipe{ours}, nil
		}}
		all, err := fetch(t.Context(), a, member("b", "10.244.2.0/24"), query{})
		if (err != nil) != c.fail || len(all) != c.want {
			t.Errorf("%s: %d findings, %v", name, len(all), err)
		}
		for _, f := range all {
			if f.Severity != findings.Warning {
				t.Fatalf("%s: %+v", name, f)
			}
		}
	}
	for _, say := range []reply{{Error: wordingtest.Hostile()[:16<<10]}, {Findings: make([]findings.Finding, 1)}} {
		if say.Error == "" {
			wordingtest.Fill(&say.Findings, wordingtest.Hostile()[:2<<10])
		}
		text, _ := json.Marshal(say)
		all, err := fetch(t.Context(), &fake{open: func() (Stream, error) {
			ours, theirs := net.Pipe()
			go func() {
				_, _ = theirs.Read(make([]byte, maxQuery))
				_, _ = theirs.Write(text)
				theirs.Close()
			}()
			return pipe{ours}, nil
		}}, member("b", "10.244.2.0/24"), query{})
		if err != nil {
			wordingtest.Check(t, err.Error(), 2<<10)
		} else if wordingtest.Check(t, all, 1<<10) < 5 {
			t.Errorf("a liar: %v", all)
		}
	}
	old := &fake{open: func() (Stream, error) { return nil, errors.New("protocols not supported") }}
	e := end{agent: old, plan: mesh.Plan{Self: member("a", "10.244.1.0/24")}, node: member("b", "10.244.2.0/24"), ip: netip.MustParseAddr("10.244.2.7")}
	if f := e.farSide(t.Context()); len(f) != 1 || f[0].Severity != findings.OK || f[0].Node != "b" || !strings.Contains(f[0].Text, "older release") {
		t.Errorf("an older agent: %+v", f)
	}
}

// A path that is not there is broken once a packet needed it, with the reason; before that it is nobody's fault.
func TestNoPath(t *testing.T) {
	e := end{agent: without{&fake{}}, node: member("b", "10.244.2.0/24")}
	if f := e.path(false); f.Severity != findings.OK {
		t.Errorf("unused: %+v", f)
	}
	if f := e.path(true); f.Severity != findings.Broken || f.Text != "no path: no relay has it" || f.Remedy == "" {
		t.Errorf("the agent there does not answer: %+v", f)
	}
}

// without has no path to anybody.
type without struct{ *fake }

func (without) Peer(mesh.Node) control.PeerStatus {
	return control.PeerStatus{Path: "none", Cause: cause.Absent, Reason: "a library's text"}
}

// A firewall that the far end warns of is the cause once its pod is not reached.
func TestBlamed(t *testing.T) {
	there := []findings.Finding{findings.Okayf("owner", ""), findings.Warningf("nftables", "x", "pods may be unreachable"), findings.Warningf("udp", "x", "y")}
	got := blamed(there, []findings.Finding{findings.Okayf("node", ""), findings.Okayf("pod", "")})
	if got[1].Severity != findings.Warning {
		t.Errorf("the pod is reached: %+v", got)
	}
	got = blamed(there, []findings.Finding{findings.Okayf("node", ""), findings.Brokenf("pod", "x", "")})
	if got[1].Severity != findings.Broken || got[1].Text != "pods are unreachable" || got[2].Severity != findings.Warning {
		t.Errorf("the pod is not reached: %+v", got)
	}
	lost := []findings.Finding{findings.Okayf("node", ""), findings.Brokenf("pod", "x", "no answer")}
	if rest := consequences(got, lost); len(rest) != 1 || rest[0].ID != "node" || !slices.Equal(got[1].Victims, []string{"pod no answer"}) {
		t.Errorf("the cause does not hide what follows: %+v, %+v", got, rest)
	}
	if rest := consequences(nil, lost); len(rest) != 2 {
		t.Errorf("without a cause there: %+v", rest)
	}
}
