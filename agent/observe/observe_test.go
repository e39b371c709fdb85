package observe

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"edgemesh/agent/control"
	"edgemesh/agent/findings"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/wording/wordingtest"
)

func ms(v float64) *float64 { return &v }

// frame is what a sender puts before and behind its words.
func frame(body string) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}

// What is written is read; what is beyond the bounds is left out, with the least traffic first.
func TestReport(t *testing.T) {
	r := Report{Version: "1", NAT: "stable", Relays: []Relay{{PeerID: "r", Lost: true, Addr: "/ip4/5.5.5.5"}}}
	for range maxFindings + 1 {
		r.Findings = append(r.Findings, findings.Finding{ID: "tun", Severity: "dire", Text: "a\nb", Remedy: strings.Repeat("<", 2*maxText), Victims: slices.Repeat([]string{strings.Repeat("<", 2*maxText)}, 100)})
	}
	for i := range MaxPairs + 10 {
		r.Pairs = append(r.Pairs, Pair{Peer: fmt.Sprint("p", i), Path: "relayed", RTTMs: ms(1.5), TxBytes: uint64(i), Reason: strings.Repeat("<ü\x1b>", 200)})
	}
	r.Pairs = append(r.Pairs, Pair{Peer: "p1", Path: "direct"}, Pair{Peer: "x", Path: "teleported"})
	var wire bytes.Buffer
	if err := Write(&wire, r, nil); err != nil {
		t.Fatal(err)
	}
	if wire.Len() > MaxReport+4 {
		t.Errorf("%d bytes", wire.Len())
	}
	got, err := Read(&wire, nil)
	if err != nil || len(got.Pairs)+got.Left != MaxPairs+10 || len(got.Pairs) < MaxPairs/10 || len(got.Findings) != maxFindings || got.Findings[0].Text != "a; b" {
		t.Fatalf("%d pairs, %d left out, %d findings, %v", len(got.Pairs), got.Left, len(got.Findings), err)
	}
	if f := got.Findings[0]; f.Severity != findings.Warning || len(f.Remedy) > maxText || len(f.Victims) != maxVictims || len(f.Victims[0]) > 2*maxName || !got.Relays[0].Lost || got.Relays[0].Addr != "" {
		t.Errorf("%.300s, %+v", fmt.Sprint(f), got.Relays)
	}
	p := got.Pairs[0]
	if p.Peer != fmt.Sprint("p", MaxPairs+9) || *p.RTTMs != 1.5 || len(p.Reason) > maxText || strings.Contains(p.Reason, "\x1b") || !utf8.ValidString(p.Reason) {
		t.Errorf("%+v", p)
	}
}

// What breaks the rules is refused, and costs what has come, not what is announced.
func TestRubbish(t *testing.T) {
	huge := append(binary.BigEndian.AppendUint32(nil, 100<<20), bytes.Repeat([]byte("x"), 1<<10)...)
	for _, c := range []struct {
		name string
		sent []byte
		want error
	}{
		{"100 MB", huge, ErrTooLong},
		{"4 GB", bytes.Repeat([]byte{0xff}, 8), ErrTooLong},
		{"empty", []byte{0, 0, 0, 0}, ErrTooLong},
		{"no JSON", frame("\x1b[31m"), ErrRubbish},
		{"deep", frame(strings.Repeat("[", 100_000)), ErrRubbish},
		{"another type", frame(`{"pairs":"all"}`), ErrRubbish},
		{"a number that is none", frame(`{"pairs":[{"rttMs":1e999}]}`), ErrRubbish},
		{"half", frame("{}")[:5], io.EOF},
	} {
		if _, err := Read(bytes.NewReader(c.sent), nil); !errors.Is(err, c.want) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	r, err := Read(bytes.NewReader(frame(`{"pairs":[{"peer":"a","path":"direct","rttMs":-1,"reason":"<script>\u001b\u202e"},{"peer":"a","path":"none"}],"left":-5,"more":1}`)), nil)
	if err != nil || len(r.Pairs) != 1 || r.Pairs[0].RTTMs != nil || r.Pairs[0].Reason != "<script>??" || r.Left != 0 {
		t.Errorf("%+v, %v", r, err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add(frame(`{"version":"1","pairs":[{"peer":"a","path":"direct"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := Read(bytes.NewReader(data), nil)
		if err != nil {
			return
		}
		for _, p := range r.Pairs {
			if !slices.Contains(Paths, p.Path) || len(p.Reason) > maxText || len(p.Peer) > maxName || p.RTTMs != nil && (math.IsNaN(*p.RTTMs) || *p.RTTMs < 0) {
				t.Errorf("%+v", p)
			}
		}
		if len(r.Pairs) > MaxPairs || len(r.Relays) > maxRelays || len(r.Findings) > maxFindings {
			t.Errorf("%d pairs, %d relays, %d findings", len(r.Pairs), len(r.Relays), len(r.Findings))
		}
		var wire bytes.Buffer
		if err := Write(&wire, r, nil); err != nil || wire.Len() > MaxReport+4 {
			t.Errorf("written again: %d bytes, %v", wire.Len(), err)
		}
	})
}

// Findings are sent once: with 50 reports, a member in trouble sends less than it did when each had its problems. Agents of
// release 0.2 read and write problems.
func TestUnchangedFindings(t *testing.T) {
	at := time.Now()
	r := Report{Version: "1", Findings: Findings{
		{ID: "relay-unreachable", Severity: findings.Broken, Subject: "12D3KooW", Text: "the relay is dead", Remedy: "start it", Since: &at, Source: "agent", Victims: []string{"peer-offline b"}},
		{ID: "forward", Severity: findings.Note, Text: "routes", Since: &at},
	}}
	var wire bytes.Buffer
	var sent, heard Findings
	sizes := []int{}
	for i := range 4 {
		if i == 2 {
			r.Findings = slices.Clone(r.Findings)
			r.Findings[0].Text = "the relay is very dead"
		}
		before := wire.Len()
		if err := Write(&wire, r, sent); err != nil {
			t.Fatal(err)
		}
		sent, sizes = r.Findings, append(sizes, wire.Len()-before)
		if body := wire.String(); !strings.Contains(body, `"problems":["relay-unreachable: the relay is`) || strings.Contains(body, "forward: ") {
			t.Error(body)
		}
		got, err := Read(&wire, heard)
		if err != nil || len(got.Findings) != 2 || got.Findings[0].Text != r.Findings[0].Text || !slices.Equal(got.Findings[0].Victims, r.Findings[0].Victims) || got.Problems != nil || got.Unchanged {
			t.Fatalf("%d: %+v, %v", i, got, err)
		}
		heard = got.Findings
	}
	if sizes[1] > 120 || sizes[2] < 2*sizes[1] || sizes[3] > 120 {
		t.Errorf("%d bytes", sizes)
	}
	got, err := Read(bytes.NewReader(frame(`{"problems":["tun: down"]}`)), nil)
	if err != nil || len(got.Findings) != 1 || got.Findings[0].Text != "tun: down" || got.Findings[0].Severity != findings.Warning {
		t.Errorf("release 0.2: %+v, %v", got, err)
	}
}

// Only what is in use and what is found is reported; of relays those that are not needed are left out.
func TestFromStatus(t *testing.T) {
	r := FromStatus(control.Status{
		Version: "1", Relays: []control.RelayStatus{{PeerID: "r", Connected: true, Addr: "/ip4/5.5.5.5"}, {PeerID: "dead"}, {PeerID: "spare", Spare: true}},
		Findings: Findings{findings.Brokenf("tun", "", "down")},
		Peers:    []control.PeerStatus{{PeerID: "a", Path: "idle"}, {PeerID: "b", Path: "native", LANBytes: 3}},
	})
	if len(r.Relays) != 2 || r.Relays[0].Lost || !r.Relays[1].Lost || len(r.Pairs) != 1 || r.Pairs[0].LANBytes != 3 || len(r.Findings) != 1 {
		t.Errorf("%+v", r)
	}
}

// pipe is a stream without a network.
type pipe struct{ net.Conn }

func (p pipe) Reset()            { p.Close() }
func (p pipe) CloseWrite() error { return p.Close() }

// member is one that answers, with the status that report says.
type member struct {
	report atomic.Pointer[Report]
	a      *Answerer
}

func newMember(ctx context.Context, r Report, observers ...mesh.PeerID) *member {
	m := &member{}
	m.report.Store(&r)
	m.a = NewAnswerer(ctx, func() Report { return *m.report.Load() }, func(id mesh.PeerID) bool { return slices.Contains(observers, id) }, slog.New(slog.DiscardHandler))
	return m
}

// observe opens a stream as id.
func (m *member) observe(wg *sync.WaitGroup, id mesh.PeerID, s Scope) pipe {
	near, far := net.Pipe()
	wg.Go(func() { m.a.Answer(id, pipe{far}) })
	wg.Go(func() { _, _ = near.Write([]byte{byte(s)}) })
	return pipe{near}
}

// Any member hears of its own pair, an observer of all, each of a changed path within a second; others hear why not.
func TestAnswer(t *testing.T) {
	two := Report{Version: "1", NAT: "stable", Findings: Findings{findings.Brokenf("tun", "", "down")}, Pairs: []Pair{{Peer: "a", Path: "direct"}, {Peer: "b", Path: "relayed"}}}
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		m := newMember(ctx, two, "boss")
		var wg sync.WaitGroup
		hear := func(st pipe) Report {
			t.Helper()
			r, err := Read(st, nil)
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		own := m.observe(&wg, "a", Own)
		if r := hear(own); len(r.Pairs) != 1 || r.Pairs[0].Peer != "a" || r.NAT != "" || r.Findings != nil || r.Refused != "" {
			t.Errorf("a's own: %+v", r)
		}
		boss := m.observe(&wg, "boss", All)
		if r := hear(boss); len(r.Pairs) != 2 || r.NAT != "stable" || len(r.Findings) != 1 {
			t.Errorf("an observer: %+v", r)
		}
		changed := two
		changed.Pairs = []Pair{{Peer: "a", Path: "relayed"}, {Peer: "b", Path: "relayed"}}
		m.report.Store(&changed)
		began := time.Now()
		if r := hear(own); r.Pairs[0].Path != "relayed" || time.Since(began) > lookEvery {
			t.Errorf("%v later: %+v", time.Since(began), r)
		}
		for _, c := range []struct {
			id   mesh.PeerID
			s    Scope
			want error
		}{{"a", All, errNoRight}, {"boss", 'x', errScope}} {
			if r := hear(m.observe(&wg, c.id, c.s)); r.Refused != c.want.Error() || len(r.Pairs) != 0 || r.Version != "" {
				t.Errorf("%s requests %c: %+v", c.id, c.s, r)
			}
		}
		m.observe(&wg, "c", Own) // never read: ends by itself
		for range perMinute + 1 {
			m.observe(&wg, "flood", Own)
		}
		time.Sleep(3 * patience) // all of them have given up
		if r := hear(m.observe(&wg, "flood", Own)); r.Refused != errTooFast.Error() && r.Refused != errTooMany.Error() {
			t.Errorf("after a flood: %+v", r)
		}
		for i := range maxStreams {
			m.observe(&wg, mesh.PeerID(fmt.Sprint(i)), Own)
		}
		synctest.Wait()
		if r := hear(m.observe(&wg, "late", Own)); r.Refused != errTooMany.Error() {
			t.Errorf("beyond the places: %+v", r)
		}
		if r := hear(m.observe(&wg, "boss", All)); r.Refused != "" || len(r.Pairs) != 2 {
			t.Errorf("an observer, while members have taken all places: %+v", r)
		}
		stop()
		wg.Wait()
		if m.a.all != 0 || m.a.others != 0 || len(m.a.open) != 0 {
			t.Errorf("places are kept: %d, %v", m.a.all, m.a.open)
		}
	})
}

// An observer hears of all members, whatever some of them send; another node observes only those it talks to.
func TestAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var wg sync.WaitGroup
		good := newMember(ctx, Report{Version: "1", Pairs: []Pair{{Peer: "self", Path: "direct"}, {Peer: "flood", Path: "none"}}}, "self")
		var left sync.Map
		var gone atomic.Bool
		observer := true
		a := Observer{
			Self: func() mesh.Node { return mesh.Node{Name: "self", PeerID: "self"} },
			Members: func() iter.Seq[*mesh.Node] {
				all := []*mesh.Node{{Name: "good", PeerID: "good", Site: "oslo"}, {Name: "flood", PeerID: "flood"}, {Name: "off", PeerID: "off"}}
				if gone.Load() {
					return slices.Values(all[1:])
				}
				return slices.Values(all)
			},
			All: func() bool { return observer },
			Own: func() Report { return Report{Pairs: []Pair{{Peer: "good", Path: "direct"}}} },
			Open: func(_ context.Context, id mesh.PeerID) (Stream, error) {
				near, far := net.Pipe()
				switch id {
				case "good":
					wg.Go(func() { good.a.Answer("self", pipe{far}) })
				case "flood": // ten reports without a pause, and then 100 MB
					wg.Go(func() {
						_, _ = far.Read(make([]byte, 1))
						for range 10 {
							_, _ = far.Write(frame(`{"version":"<b>"}`))
						}
						_, _ = far.Write(append([]byte{6, 64, 0, 0}, make([]byte, 100<<20)...))
					})
				default:
					return nil, errors.New("unreachable\x1b[31m")
				}
				return pipe{near}, nil
			},
			Leave: func(id mesh.PeerID) { left.Store(id, true) },
		}
		run := func(d time.Duration) (last map[string]Event, count map[string]int) {
			last, count = map[string]Event{}, map[string]int{}
			ctx, stop := context.WithTimeout(ctx, d)
			defer stop()
			if err := a.Run(ctx, func(e Event) error { last[e.Node] = e; count[e.Node]++; return nil }); err != nil {
				t.Error(err)
			}
			return last, count
		}
		last, count := run(1500 * time.Millisecond)
		if e := last["good"]; e.Report == nil || len(e.Report.Pairs) != 2 || e.Site != "oslo" {
			t.Errorf("good: %+v", e)
		}
		if e := last["self"]; !e.Self || !e.All || e.Report == nil {
			t.Errorf("self: %+v", e)
		}
		if e := last["off"]; e.Report != nil || e.Error != "unreachable?[31m" {
			t.Errorf("off: %+v", e)
		}
		if count["flood"] > 10 || last["flood"].Report == nil {
			t.Errorf("%d reports of the flood: %+v", count["flood"], last["flood"])
		}
		last, count = run(20 * time.Second)
		if e := last["flood"]; !strings.Contains(e.Error, ErrTooLong.Error()) || count["flood"] > 13 {
			t.Errorf("%d events of the flood: %+v", count["flood"], e)
		}
		for _, id := range []mesh.PeerID{"good", "flood", "off"} {
			if _, ok := left.Load(id); !ok {
				t.Errorf("%s is not left", id)
			}
		}
		observer = false
		last, count = run(10 * time.Second)
		if e := last["good"]; e.Report == nil || len(e.Report.Pairs) != 1 || e.Report.Pairs[0].Peer != "self" {
			t.Errorf("good, to no observer: %+v", e)
		}
		if e := last["flood"]; e.Report != nil || e.Error != "" || count["flood"] != 1 {
			t.Errorf("flood, which is not in use: %+v", e)
		}
		time.AfterFunc(2*time.Second, func() { gone.Store(true) })
		if last, _ = run(5 * time.Second); !last["good"].Gone {
			t.Errorf("good, which has left: %+v", last["good"])
		}
		enough := errors.New("enough")
		if err := a.Run(ctx, func(Event) error { return enough }); !errors.Is(err, enough) {
			t.Error(err)
		}
		stop()
		wg.Wait()
	})
}

// Every text of another member's report is one that a screen, a table or a program may have.
func TestReportOfALiar(t *testing.T) {
	var r Report
	wordingtest.Fill(&r, wordingtest.Hostile()[:4<<10], "Pair.Path")
	for i := range r.Pairs {
		r.Pairs[i].Path = "none"
	}
	body, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Read(bytes.NewReader(frame(string(body))), nil)
	if err != nil {
		t.Fatal(err)
	}
	if n := wordingtest.Check(t, got, maxText); n < 15 {
		t.Errorf("%d texts came through: %+v", n, got)
	}
}
