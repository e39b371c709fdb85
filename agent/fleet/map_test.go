package fleet

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"edgemesh/agent/control"
)

// The page has every node at its place, each pair once with the worse of its ends' paths, and nothing of a node's words as HTML.
func TestMap(t *testing.T) {
	file := filepath.Join(t.TempDir(), "mesh.html")
	script := strings.ReplaceAll(fake, `"detail": "it is off"`, `"detail": "<script>alert(1)</script>"`)
	script = strings.ReplaceAll(script, `"refused\u001b[31m"`, `"<img src=x>"`)
	if code, out := run(t, script, "map", "--write", file); code != 0 || out != "" {
		t.Fatalf("code %d: %s", code, out)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	page := string(b)
	contains(t, page, "4 nodes at 2 sites, 1 without trouble; 2 pairs in use", `<circle class="well"`, `<circle class="wrong"`, `<circle class="unasked"`,
		`<line class="none"`, "<td>edge-2</td><td>edge-1</td><td>none</td>", `<line class="relayed"`, ">berlin<", "&lt;img src=x&gt;")
	if strings.Contains(page, "<script") || strings.Contains(page, "<img") || strings.Contains(page, "refresh") || strings.Contains(page, `class="native"`) {
		t.Errorf("%s", page)
	}
	if left, err := os.ReadDir(filepath.Dir(file)); err != nil || len(left) != 1 {
		t.Errorf("%v, %v", left, err)
	}
	if code, _ := run(t, fake, "map", "--write", "/nowhere/x.html"); code != 1 {
		t.Errorf("no such directory: code %d", code)
	}
}

// Nodes of many sites do not lie on each other, and stay in the picture.
func TestPlaces(t *testing.T) {
	for _, n := range []struct{ sites, each int }{{1, 1}, {1, 12}, {2, 3}, {7, 4}, {20, 3}} {
		var states []state
		for s := range n.sites {
			for i := range n.each {
				name := string(rune('a'+s)) + string(rune('a'+i))
				states = append(states, state{member: member{Node: name, Ready: "True"}, Status: &control.Status{Node: name, Site: string(rune('a' + s))}})
			}
		}
		d := draw(states, time.Now(), true)
		if len(d.Nodes) != len(states) || len(d.Sites) != n.sites || d.Refresh != 10 {
			t.Fatalf("%+v: %d nodes, %d sites", n, len(d.Nodes), len(d.Sites))
		}
		for i, a := range d.Nodes {
			if math.Abs(a.X) > 600 || math.Abs(a.Y) > 540 {
				t.Errorf("%+v: %s is outside: %.0f, %.0f", n, a.Name, a.X, a.Y)
			}
			for _, b := range d.Nodes[:i] {
				if math.Hypot(a.X-b.X, a.Y-b.Y) < 26 {
					t.Errorf("%+v: %s lies on %s", n, a.Name, b.Name)
				}
			}
		}
	}
}
