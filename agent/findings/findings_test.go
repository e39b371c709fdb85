package findings

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"edgemesh/test/reference"
	"edgemesh/test/repo"
)

// docs/findings.md lists every kind, with an anchor of its name.
func TestReference(t *testing.T) {
	root, err := repo.Root()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("# Findings\n\nMade from `agent/findings/catalogue.go` by `make reference`. `status`, `doctor`, the map, `kubectl edgemesh`, the metric\n" +
		"`edgemesh_finding{id,severity}`, conditions of MeshNodes and events use these IDs. `status` shows what the running agent sees by\n" +
		"itself, and for ten minutes what `doctor` saw; `doctor` also probes. Broken findings stop traffic, warnings do not yet, notes say how\n" +
		"things are. A cause hides its consequences: they are listed under it.\n")
	for _, by := range []Seen{ByStatus, ByDoctor, ByPath} {
		fmt.Fprintf(&b, "\n## Seen by %s\n", map[Seen]string{ByStatus: "`status`", ByDoctor: "`doctor`", ByPath: "`doctor NODE` or `doctor POD-IP`"}[by])
		for _, k := range Kinds {
			if k.Seen != by {
				continue
			}
			fmt.Fprintf(&b, "\n### %s\n\nCause: %s.  \nRemedy: %s.\n", k.ID, k.Cause, k.Remedy)
			if k.Event != "" {
				fmt.Fprintf(&b, "Event: %s.\n", k.Event)
			}
			if len(k.Hides) > 0 {
				fmt.Fprintf(&b, "While broken it hides %s.\n", strings.Join(k.Hides, ", "))
			}
		}
	}
	reference.Compare(t, filepath.Join(root, "docs", "findings.md"), b.String())
}

// Every finding that the code makes is in the catalogue, and so is everything that hides or is hidden.
func TestCatalogue(t *testing.T) {
	seen := map[string]bool{}
	for _, k := range Kinds {
		if seen[k.ID] || k.ID == "" || k.Cause == "" || k.Remedy == "" || k.Seen == "" {
			t.Errorf("incomplete or twice: %+v", k)
		}
		seen[k.ID] = true
	}
	for _, k := range Kinds {
		for _, id := range slices.Concat(k.Hides, k.Same) {
			if !seen[id] || id == k.ID {
				t.Errorf("%s hides %s", k.ID, id)
			}
		}
	}
	root, err := repo.Root()
	if err != nil {
		t.Fatal(err)
	}
	made := 0
	for _, file := range sources(t, filepath.Join(root, "agent")) {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			call, is := n.(*ast.CallExpr)
			if !is || len(call.Args) == 0 {
				return true
			}
			name, is := call.Fun.(*ast.SelectorExpr)
			id, literal := call.Args[0].(*ast.BasicLit)
			if !is || !literal || !slices.Contains([]string{"Warningf", "Brokenf", "Notef"}, name.Sel.Name) {
				return true
			}
			made++
			if text, _ := strconv.Unquote(id.Value); !seen[text] {
				t.Errorf("%s: %s is not in the catalogue", file, text)
			}
			return true
		})
	}
	if made < 40 {
		t.Errorf("only %d calls found", made)
	}
}

func sources(t *testing.T, dir string) (out []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
			out = append(out, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func ids(all []Finding) string {
	var out []string
	for _, f := range all {
		text := strings.TrimSpace(f.ID + " " + f.Subject)
		if len(f.Victims) > 0 {
			text += " (" + strings.Join(f.Victims, ", ") + ")"
		}
		out = append(out, text)
	}
	return strings.Join(out, "; ")
}

func TestCauses(t *testing.T) {
	uplink, relay := Brokenf("uplink", "x", "no route"), Brokenf("relay-unreachable", "x", "dead").About("R1")
	other := Warningf("relay-unreachable", "x", "dead").About("R2")
	off, lost := Warningf("peer-offline", "x", "off").About("edge-2"), Warningf("peer-unreachable", "x", "lost").About("edge-3")
	for name, c := range map[string]struct {
		all  []Finding
		want string
	}{
		"nothing":                               {nil, ""},
		"order":                                 {[]Finding{Okayf("key", ""), lost, Brokenf("pool", "x", ""), Brokenf("tun", "x", "")}, "tun; pool; peer-unreachable edge-3; key"},
		"an uplink hides all":                   {[]Finding{lost, relay, off, uplink}, "uplink (relay-unreachable R1, peer-offline edge-2, peer-unreachable edge-3)"},
		"none answers, which may be the relays": {[]Finding{lost, relay, Brokenf("no-relay-answers", "x", "")}, "no-relay-answers (peer-unreachable edge-3); relay-unreachable R1"},
		"names hide what Set makes":             {[]Finding{Brokenf("names", "x", ""), Brokenf("routes", "x", ""), Brokenf("way", "x", ""), Brokenf("cni", "x", "")}, "names (routes); way; cni"},
		"a dead relay hides peers":              {[]Finding{lost, relay}, "relay-unreachable R1 (peer-unreachable edge-3)"},
		"a warning hides nothing":               {[]Finding{lost, other}, "relay-unreachable R2; peer-unreachable edge-3"},
		"of one subject":                        {[]Finding{off, Warningf("peer-unreachable", "x", "").About("edge-2"), lost}, "peer-offline edge-2 (peer-unreachable edge-2); peer-unreachable edge-3"},
		"other nodes' are not hidden":           {[]Finding{uplink, {ID: "relay-unreachable", Node: "edge-9", Severity: Broken}}, "uplink; relay-unreachable"},
		"what is well is not hidden":            {[]Finding{uplink, Okayf("udp", "fine")}, "uplink; udp"},
		"unknown kinds stay, and twice":         {[]Finding{Warningf("new", "x", ""), Warningf("new", "x", "")}, "new; new"},
	} {
		all := Causes(c.all)
		if got := ids(all); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if b, err := json.Marshal(all); err != nil || b[0] != '[' {
			t.Errorf("%s: %s, %v", name, b, err)
		}
	}
}

func TestTracker(t *testing.T) {
	var tr Tracker
	start := time.Unix(1000, 0)
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	lost := Warningf("peer-unreachable", "x", "lost").About("edge-3")
	got := tr.Now(at(0), []Finding{lost, Okayf("key", "")})
	got = append(got, tr.Now(at(5), []Finding{lost})...)
	if len(got) != 2 || !got[1].Since.Equal(start) || got[1].Source != Agent {
		t.Fatalf("%+v", got)
	}
	tr.Now(at(6), nil)
	if got := tr.Now(at(7), []Finding{lost}); !got[0].Since.Equal(at(7)) {
		t.Errorf("again, since %v", got[0].Since)
	}
	tr.Now(at(3), []Finding{Warningf("pool", "x", "full")}) // an older look, which ended late
	if got := tr.Now(at(9), []Finding{lost}); !got[0].Since.Equal(at(7)) {
		t.Errorf("after an older look, since %v", got[0].Since)
	}
	tr.Probed(at(10), []Finding{Brokenf("relay-unreachable", "x", "seen by the agent itself"), Warningf("udp", "x", "closed").About("R1"), Okayf("clock", "")})
	if got := tr.Now(at(100), nil); ids(got) != "udp R1" || got[0].Source != Doctor || !got[0].Since.Equal(at(10)) {
		t.Errorf("%+v", got)
	}
	if got := tr.Now(at(10).Add(ProbedFor), nil); len(got) != 0 {
		t.Errorf("after ten minutes: %+v", got)
	}
	tr.Probed(at(20), []Finding{Warningf("udp", "x", "closed")})
	tr.Probed(at(21), []Finding{Okayf("udp", "")})
	if got := tr.Now(at(22), nil); len(got) != 0 {
		t.Errorf("gone at doctor's next run: %+v", got)
	}
}

// Text of other nodes is one printable line of bounded length, and so is its JSON, which older releases read and write.
func TestBounded(t *testing.T) {
	f := Finding{ID: "x\x1b[2J", Node: "\u202ee", Text: strings.Repeat("ä\n\x1b", 4000), Victims: slices.Repeat([]string{strings.Repeat("v", 999)}, 999)}.Bounded()
	for _, text := range append(f.Victims, f.ID, f.Node, f.Text) {
		if len(text) > maxText || strings.ContainsAny(text, "\x1b\n\u202e") {
			t.Errorf("%q", text)
		}
	}
	if len(f.Victims) != maxVictims+1 || f.Victims[maxVictims] != "935 more" {
		t.Errorf("%d victims", len(f.Victims))
	}
	shared := Finding{Victims: []string{"a\n", "b"}}
	if shared.Bounded(); shared.Victims[0] != "a\n" {
		t.Error("another one's finding is changed")
	}
	b, err := json.Marshal(Brokenf("relay-unreachable", "start it", "dead").About("R1"))
	if want := `{"id":"relay-unreachable","severity":"broken","subject":"R1","text":"dead","remedy":"start it","check":"relays","detail":"dead"}`; err != nil || string(b) != want {
		t.Errorf("%s, want %s", b, want)
	}
	var read Finding
	if err := json.Unmarshal([]byte(`{"check":"key","severity":"ok","detail":"fine"}`), &read); err != nil || read.ID != "key" || read.Text != "fine" {
		t.Errorf("%+v, %v", read, err)
	}
}
