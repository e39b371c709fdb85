package livemap

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"edgemesh/agent/findings"
	"edgemesh/agent/observe"
	"edgemesh/test/tier"
)

// modules installs what the lock file names, outside of the source tree.
func modules(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"package.json", "package-lock.json"} {
		b, err := os.ReadFile("web/" + name)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	c := exec.CommandContext(t.Context(), "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	c.Dir = dir
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("npm ci: %v\n%s", err, out)
	}
	return filepath.Join(dir, "node_modules")
}

// The drawing library that is committed is what the lock file names, to the byte.
func TestBundle(t *testing.T) {
	tier.Long(t)
	from := modules(t)
	for committed, theirs := range map[string]string{"cytoscape.min.js.gz": "cytoscape/dist/cytoscape.min.js", "cytoscape.LICENSE": "cytoscape/LICENSE"} {
		want, err := os.ReadFile(filepath.Join(from, theirs))
		if err != nil {
			t.Fatal(err)
		}
		have, err := os.ReadFile("web/" + committed)
		if strings.HasSuffix(committed, ".gz") {
			have = []byte(unpack(t, string(have)))
		}
		if err != nil || !bytes.Equal(have, want) {
			t.Errorf("web/%s is not %s of the lock file (%v): make map-bundle", committed, theirs, err)
		}
	}
}

// busy is a page with a mesh of n nodes, of which every one reports each 3 s, as observe has them do.
func busy(t *testing.T, n int) (url string, say chan<- observe.Event) {
	t.Helper()
	in := make(chan observe.Event)
	p, base, stop := serve(t, in)
	for _, e := range fleet(n, 0) {
		in <- observe.Event{Node: e.Node, PeerID: e.PeerID, Site: e.Site}
	}
	for _, e := range fleet(n, 0) {
		in <- e
	}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for i := 1; ; i++ {
			for _, e := range fleet(n, i/2) {
				select {
				case <-done:
					return
				case in <- e:
				}
				time.Sleep(3 * time.Second / time.Duration(n)) // sleep: the rate of events
			}
		}
	}()
	t.Cleanup(func() {
		close(done)
		<-ended
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	return base + "/?token=" + p.Token, in
}

// blank logs what this browser does on this machine with a picture of the map's size that is moved and nothing else.
func blank(t *testing.T, b *browser) {
	t.Helper()
	b.must(t, b.session, "Page.navigate", map[string]any{"url": "about:blank"}, nil)
	cpu := b.cpu(t)
	var frames struct{ Count, Millis float64 }
	b.eval(t, `new Promise(done => {
		document.body.innerHTML = '<canvas width=1136 height=880></canvas>';
		const from = document.createElement('canvas'), to = document.querySelector('canvas').getContext('2d');
		from.width = 2272; from.height = 1760; // cytoscape keeps twice the size
		from.getContext('2d').fillRect(100, 100, 1000, 700);
		let n = 0, began = 0;
		const step = now => {
			if (n === 0) began = now;
			to.clearRect(0, 0, 1136, 880);
			to.drawImage(from, 90 * Math.sin(n / 15), 60 * Math.cos(n / 20), 1136, 880);
			n++;
			if (now - began < 3000) return requestAnimationFrame(step);
			done({count: n, millis: now - began});
		};
		requestAnimationFrame(step);
	})`, &frames)
	t.Logf("a blank page: %.1f frames a second, %.1f ms of CPU each", frames.Count/frames.Millis*1000, (b.cpu(t)-cpu)*1000/frames.Count)
}

// scene is what an observer hears of a small fleet: three sites behind NATs and a cloud, with two relays.
type scene []observe.Event

// relayIDs are those of the scene's relays.
var relayIDs = []string{"12D3KooWGRUVh7eR8mCzRTsYJ5q3vWmZLk1aYb2x9dEfParisOne", "12D3KooWK9qHn4cTq8f7XwzVbLr2sJ6pNgTt3yUoDiMkAsiaTwo"} //nolint:gochecknoglobals // a constant

func newScene(relays int) (s scene) {
	at := time.Now().Add(-3 * time.Hour)
	for i, name := range []string{"cloud-1", "paris-1", "paris-2", "paris-3", "lyon-1", "lyon-2", "lyon-3", "lyon-4", "oslo-1", "oslo-2", "oslo-till-register-basement", "oslo-4"} {
		site, _, _ := strings.Cut(name, "-")
		e := heard(name, site)
		e.Self, e.All = i == 0, i == 0
		e.Report.NAT, e.Report.StartedAt = "stable", at
		for k, id := range relayIDs[:relays] {
			e.Report.Relays = append(e.Report.Relays, observe.Relay{PeerID: id, Reserved: true, Addr: fmt.Sprintf("/ip4/203.0.113.%d/tcp/4001", 10+k)})
		}
		s = append(s, e)
	}
	for _, p := range []struct {
		a, b int
		path string
	}{{1, 2, "native"}, {2, 3, "native"}, {4, 5, "native"}, {6, 7, "vxlan"}, {8, 9, "native"}, {9, 10, "native"}, {10, 11, "native"}, {0, 1, "direct"}, {0, 4, "direct"}, {0, 8, "direct"},
		{1, 4, "punched"}, {3, 7, "punched"}, {5, 11, "relayed"}, {2, 9, "punched"}} {
		for _, end := range [][2]int{{p.a, p.b}, {p.b, p.a}} {
			rtt := map[string]float64{"native": .4, "vxlan": .7, "direct": 12, "punched": 21, "relayed": 48}[p.path]
			s[end[0]].Report.Pairs = append(s[end[0]].Report.Pairs, observe.Pair{Peer: s[end[1]].PeerID, Path: p.path, RTTMs: &rtt, TxBytes: 1 << 20, Transport: "quic", Since: &at})
		}
	}
	return s
}

// relayDead has the only relay answer nobody.
func (s scene) relayDead() scene {
	since := time.Now().Add(-4 * time.Minute)
	for i := range s {
		r := s[i].Report
		r.Relays[0].Reserved, r.Relays[0].Lost = false, true
		f := findings.Finding{ID: "relay-unreachable", Severity: findings.Broken, Subject: relayIDs[0], Since: &since, Source: findings.Agent,
			Text: "the relay 203.0.113.10:4001 refuses connections: edgemesh-relay does not run there", Remedy: "start edgemesh-relay on 203.0.113.10, and open its port 4001 for TCP and UDP"}
		for k := range r.Pairs {
			if r.Pairs[k].Path == "relayed" {
				r.Pairs[k].Path = "none"
				f.Victims = append(f.Victims, "peer-unreachable "+strings.ToLower(r.Pairs[k].Peer))
			}
		}
		r.Findings = observe.Findings{f}
	}
	return s
}

// nodeOff has oslo's second node off, which two others need.
func (s scene) nodeOff() scene {
	since := time.Now().Add(-9 * time.Minute)
	off := s[9]
	s[9] = observe.Event{Node: off.Node, PeerID: off.PeerID, Site: off.Site, Error: "no relay has a reservation of it"}
	for _, i := range []int{2, 8, 10} {
		r := s[i].Report
		for k := range r.Pairs {
			if r.Pairs[k].Peer == off.PeerID {
				r.Pairs[k].Path, r.Pairs[k].RTTMs = "none", nil
			}
		}
		r.Findings = observe.Findings{{ID: "peer-offline", Severity: findings.Warning, Subject: off.Node, Since: &since, Source: findings.Agent,
			Text:   off.Node + " is offline: no relay has it (first refused 05:21:07); its agent does not run, or it has no uplink",
			Remedy: "start that machine or its agent, or check its uplink; `edgemesh-agent doctor` there says more"}}
	}
	return s
}

// show serves a page with a scene, and keeps it fresh.
func (s scene) show(t *testing.T) (url string, say chan<- observe.Event) {
	t.Helper()
	in := make(chan observe.Event)
	p, base, stop := serve(t, in)
	for _, e := range s {
		in <- observe.Event{Node: e.Node, PeerID: e.PeerID, Site: e.Site}
	}
	for _, e := range s {
		in <- e
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	return base + "/?token=" + p.Token, in
}

// pixels counts a picture's pixels of a colour of the style sheet, within a small distance.
func (b *browser) pixels(t *testing.T, colour string) (n int) {
	t.Helper()
	b.eval(t, `new Promise(done => setTimeout(() => { // after the next drawing
		const want = getComputedStyle(document.documentElement).getPropertyValue('--`+colour+`').trim().match(/[0-9a-f]{2}/g).map(x => parseInt(x, 16));
		let n = 0;
		for (const c of document.querySelectorAll('#graph canvas')) {
			const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
			for (let i = 0; i < d.length; i += 4) n += d[i + 3] > 250 && want.every((v, k) => Math.abs(d[i + k] - v) < 3);
		}
		done(n);
	}, 1500))`, &n)
	return n
}

// The pictures of docs/map.md, each with what it must show: causes apart from victims, in words and in colour, and nothing that is
// healthy by colour where nothing fresh was heard.
func TestScenes(t *testing.T) {
	tier.Long(t)
	b := newBrowser(t, 1280, 800)
	text := func(id string) (out string) {
		b.eval(t, "document.querySelector('#"+id+"').innerText", &out)
		return out
	}
	state := func(id string) (out string) {
		b.eval(t, "cy.getElementById('"+id+"').data('state')", &out)
		return out
	}
	is := func(t *testing.T, what, got, want string) {
		t.Helper()
		if !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	open := func(t *testing.T, s scene, theme string) chan<- observe.Event {
		url, say := s.show(t)
		t.Cleanup(func() { b.must(t, b.session, "Page.navigate", map[string]any{"url": "about:blank"}, nil) }) // before the map ends
		b.open(t, url)
		b.eval(t, "theme('"+theme+"')", nil)
		b.until(t, fmt.Sprintf("all.nodes.size === %d", len(s)))
		time.Sleep(1500 * time.Millisecond) // sleep: lists follow
		return say
	}
	one, two := "relay …"+relayIDs[0][len(relayIDs[0])-8:], "relay …"+relayIDs[1][len(relayIDs[1])-8:]
	t.Run("healthy", func(t *testing.T) {
		open(t, newScene(2), "light")
		is(t, "verdict", text("verdict"), "No trouble")
		is(t, "relays", text("relays"), "203.0.113.11")
		if state(one) != "well" || state(two) != "well" || b.pixels(t, "bad")+b.pixels(t, "unknown") > 0 {
			t.Errorf("%s, %s, %d red pixels", state(one), state(two), b.pixels(t, "bad"))
		}
		var lines int
		if b.eval(t, "cy.edges('[path=\"relay\"]').length", &lines); lines != 24 {
			t.Errorf("%d lines to relays", lines)
		}
		// Without colours paths differ, too.
		var looks, keys []string
		b.eval(t, "['native', 'vxlan', 'direct', 'punched', 'relayed'].map(p => { const s = cy.edges('[path=\"' + p + '\"]').style(); return s['line-style'] + s['line-dash-pattern']; })", &looks)
		b.eval(t, "[...document.querySelectorAll('.key')].map(k => { const s = getComputedStyle(k); return s.strokeDasharray + s.strokeWidth; })", &keys)
		if slices.Sort(looks); len(slices.Compact(looks)) != 5 {
			t.Errorf("paths have one look: %q", looks)
		}
		if slices.Sort(keys); len(slices.Compact(keys)) != 7 {
			t.Errorf("keys have one look: %q", keys)
		}
		b.shot(t, "healthy")
	})
	t.Run("relay dead", func(t *testing.T) {
		open(t, newScene(1).relayDead(), "light")
		is(t, "verdict", text("verdict"), "1 broken")
		is(t, "what is wrong", text("findings"), "edgemesh-relay does not run there")
		is(t, "victims", text("nodes"), "affected: relay 203.0.113.10")
		is(t, "victims", text("findings"), "From it follows: lyon-2 (peer-unreachable), oslo-4 (peer-unreachable)")
		if state(one) != "broken" || state("oslo-4") != "affected" || b.pixels(t, "bad") < 200 {
			t.Errorf("%s, %s, %d red pixels", state(one), state("oslo-4"), b.pixels(t, "bad"))
		}
		b.shot(t, "relay-dead")
		b.eval(t, "choose({relay: '"+strings.TrimPrefix(one, "relay ")+"'})", nil)
		b.until(t, "document.querySelector('#detail').innerText.includes('start edgemesh-relay on 203.0.113.10')")
	})
	t.Run("node off", func(t *testing.T) {
		open(t, newScene(2).nodeOff(), "light")
		is(t, "verdict", text("verdict"), "1 warning")
		is(t, "what is wrong", text("findings"), "oslo-2 is offline: no relay has it (first refused 05:21:07)")
		is(t, "victims", text("findings"), "Reported by oslo-1, oslo-till-register-basement, paris-2")
		if state("oslo-2") != "warning" || state("oslo-1") != "affected" || state("lyon-1") != "well" {
			t.Errorf("%s, %s, %s", state("oslo-2"), state("oslo-1"), state("lyon-1"))
		}
		b.shot(t, "node-off")
	})
	t.Run("dark", func(t *testing.T) {
		open(t, newScene(1).relayDead(), "dark")
		if b.pixels(t, "bad") < 200 {
			t.Error("the relay is not red")
		}
		b.shot(t, "dark")
	})
	t.Run("200 nodes", func(t *testing.T) {
		all := scene(fleet(200, 0))
		all[57] = observe.Event{Node: all[57].Node, PeerID: all[57].PeerID, Site: all[57].Site, Error: "no answer for 12 s"}
		all[20].Report.Findings = observe.Findings{{ID: "uplink", Severity: findings.Broken, Text: "no interface that leads off this host has an address", Victims: []string{"relay-unreachable 12D3KooWrelay-one"}}}
		all[131].Report.Findings = observe.Findings{{ID: "pool", Severity: findings.Warning, Text: "241 of 253 pod addresses are used"}}
		open(t, all, "light")
		is(t, "verdict", text("verdict"), "1 broken, 1 warning, 1 node unknown")
		drawn := func(class string) (n int) {
			b.eval(t, "cy.nodes('[class=\""+class+"\"]').length", &n)
			return n
		}
		if drawn("folded") != 20 || drawn("node") != 0 || state("folded site-2") != "broken" || state("folded site-13") != "warning" || state("folded site-5") != "unknown" {
			t.Errorf("%d folded sites, %d nodes; %s, %s, %s", drawn("folded"), drawn("node"), state("folded site-2"), state("folded site-13"), state("folded site-5"))
		}
		var inside int
		if b.eval(t, "cy.edges().filter(e => e.source().id() === e.target().id()).length", &inside); inside > 0 {
			t.Errorf("%d lines inside of folded sites", inside)
		}
		b.eval(t, "cy.getElementById('folded site-2').emit('tap'); 0", nil)
		if drawn("folded") != 19 || drawn("node") != 10 || state("edge-20") != "broken" {
			t.Errorf("one is opened: %d folded sites, %d nodes", drawn("folded"), drawn("node"))
		}
		b.shot(t, "200-nodes")
		b.eval(t, "choose({node: 'edge-131'})", nil)
		if drawn("folded") != 18 || state("edge-131") != "warning" {
			t.Errorf("a node is chosen: %d folded sites", drawn("folded"))
		}
		b.eval(t, "document.querySelector('#fold').click()", nil)
		if drawn("folded") != 0 || drawn("node") != 200 {
			t.Errorf("all are opened: %d folded sites, %d nodes", drawn("folded"), drawn("node"))
		}
		b.eval(t, "cy.getElementById('site site-2').emit('tap'); 0", nil)
		if drawn("folded") != 1 {
			t.Errorf("one is folded: %d folded sites", drawn("folded"))
		}
	})
	t.Run("phone", func(t *testing.T) {
		b.size(t, 390, 844)
		defer b.size(t, 1280, 800)
		open(t, newScene(1).relayDead(), "light")
		var wide int
		if b.eval(t, "document.documentElement.scrollWidth", &wide); wide > 390 {
			t.Errorf("%d pixels wide", wide)
		}
		var cut []string
		if b.eval(t, "[...document.querySelectorAll('header *, #side td, #side th, #side button, .legend *')].filter(x => x.offsetParent && x.getBoundingClientRect().right > 390).map(x => x.textContent)", &cut); len(cut) > 0 {
			t.Errorf("beyond the edge: %q", cut)
		}
		b.shot(t, "phone")
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.console) > 0 {
		t.Errorf("the page complains: %s", b.console)
	}
}

// Without news nothing is green: neither when the map has ended, nor when it hangs, nor when a member is heard no longer.
func TestStale(t *testing.T) {
	tier.Long(t)
	b := newBrowser(t, 1280, 800)
	in := make(chan observe.Event)
	p, base, stop := serve(t, in)
	for _, e := range newScene(2) {
		in <- e
	}
	b.open(t, base+"/?token="+p.Token)
	b.until(t, "document.querySelector('#verdict').textContent === 'No trouble' && cy.nodes('[state=\"well\"]').length === 14")
	if b.pixels(t, "good") < 1000 {
		t.Error("nothing is green at first")
	}
	green := func(when string) {
		t.Helper()
		if n := b.pixels(t, "good"); n > 0 {
			t.Errorf("%s: %d green pixels", when, n)
		}
	}
	b.eval(t, "heardAt -= 16000", nil) // as if nothing had come, while the connection stands
	b.until(t, "document.querySelector('#verdict').textContent.startsWith('Old: no news since')")
	green("the map hangs")
	b.until(t, "document.querySelector('#verdict').textContent === 'No trouble'") // the next beat
	b.until(t, "document.querySelector('#nodes').innerText.includes('unknown: last heard ')")
	var words string
	if b.eval(t, "document.querySelector('#nodes').innerText", &words); strings.Contains(words, "no trouble") {
		t.Errorf("nobody has reported for long: %s", words)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	b.until(t, "document.querySelector('#verdict').textContent.startsWith('Old: no news since')")
	green("the map has ended")
}

// The focus stays on what it was on while rows change, move and go, in lists and in the detail.
func TestFocus(t *testing.T) {
	tier.Long(t)
	b := newBrowser(t, 1280, 800)
	s := newScene(2)
	url, say := s.show(t)
	b.open(t, url)
	b.until(t, "document.querySelectorAll('#nodes tr').length === 12")
	focus := func(where, on string) {
		t.Helper()
		b.eval(t, "[...document.querySelectorAll('"+where+" button')].find(x => x.textContent.startsWith('"+on+"')).focus()", nil)
	}
	is := func(when, script string) {
		t.Helper()
		b.until(t, script)
		var on string
		b.eval(t, "document.activeElement.textContent", &on)
		if !strings.HasPrefix(on, "lyon-3") {
			t.Errorf("%s: the focus is on %.100q", when, on)
		}
	}
	focus("#nodes", "lyon-3")
	sick := s[6]
	report := *sick.Report
	report.Findings = observe.Findings{{ID: "tun", Severity: findings.Broken, Text: "the TUN is down"}}
	sick.Report = &report
	say <- sick
	is("its row moved to the top", "document.querySelector('#nodes tr').textContent.includes('the TUN is down')")
	say <- s[6]
	is("it moved back", "!document.querySelector('#nodes').textContent.includes('the TUN is down')")
	focus("#nodes", "lyon-4")
	b.eval(t, "document.activeElement.click()", nil)
	b.until(t, "document.activeElement.id === 'detail'")
	focus("#detail", "lyon-3")
	other := s[7]
	report = *other.Report
	report.NAT = "random"
	other.Report = &report
	say <- other
	is("the detail changed", "document.querySelector('#detail').textContent.includes('random')")
	focus("#nodes", "lyon-3")
	say <- observe.Event{Node: "lyon-3", PeerID: "LYON-3", Gone: true}
	b.until(t, "document.querySelectorAll('#nodes tr').length === 11")
	var label string
	if b.eval(t, "document.activeElement.getAttribute('aria-labelledby')", &label); label != "nodes-title" {
		t.Errorf("its row is gone: the focus is on %q", label)
	}
}

// 500 nodes: painted within a second, and moved at 30 frames a second while all of them report.
func TestSmooth(t *testing.T) {
	tier.Long(t)
	b := newBrowser(t, 1600, 1000)
	blank(t, b)
	url, _ := busy(t, 500)
	b.open(t, url)
	b.until(t, "all.nodes.size >= 500")
	b.eval(t, "Draw.foldAll()", nil)
	b.until(t, "cy.nodes('[class!=\"site\"]').length >= 500 && cy.edges().length > 1000")
	var paint float64
	b.eval(t, "performance.getEntriesByName('first-contentful-paint')[0].startTime", &paint)
	var drawn struct{ Nodes, Edges int }
	b.eval(t, "({nodes: cy.nodes().length, edges: cy.edges().length})", &drawn)
	t.Logf("first paint after %.0f ms; %d nodes, %d edges", paint, drawn.Nodes, drawn.Edges)
	if paint > 1000 {
		t.Errorf("first paint after %.0f ms, want 1000 at most", paint)
	}
	for _, move := range []struct{ name, begin, step, end string }{
		{"drag", "send('mousedown', 600, 500)", "send('mousemove', 600 + 90 * Math.sin(n / 15), 500 + 60 * Math.cos(n / 20))", "send('mouseup', 600, 500)"},
		{"wheel", "0", "wheel(600, 500, 3 * Math.sin(n / 20))", "0"},
	} {
		cpu := b.cpu(t)
		var frames struct{ Count, Millis, Worst float64 }
		b.eval(t, `new Promise(done => {
			const at = (kind, x, y, more) => ({bubbles: true, cancelable: true, clientX: x, clientY: y, button: 0, buttons: 1, which: 1, view: window, ...more});
			const canvas = document.querySelector('#graph canvas');
			const send = (kind, x, y) => canvas.dispatchEvent(new MouseEvent(kind, at(kind, x, y)));
			const wheel = (x, y, by) => canvas.dispatchEvent(new WheelEvent('wheel', at('wheel', x, y, {deltaY: by, deltaMode: 0})));
			let n = 0, drawn = 0, began = 0, last = 0, worst = 0;
			const count = () => drawn++;
			`+move.begin+`;
			const step = now => {
				if (n === 0) { began = now; cy.on('render', count); } else worst = Math.max(worst, now - last);
				last = now;
				`+move.step+`;
				n++;
				if (now - began < 5000) return requestAnimationFrame(step);
				cy.off('render', count);
				`+move.end+`;
				done({count: Math.min(n, drawn), millis: now - began, worst});
			};
			requestAnimationFrame(step);
		})`, &frames)
		cpu = b.cpu(t) - cpu
		perFrame := cpu * 1000 / frames.Count
		t.Logf("%s: %.0f frames, %.1f a second, the longest took %.0f ms; %.1f ms of CPU each, in all of the browser's processes", move.name,
			frames.Count, frames.Count/frames.Millis*1000, frames.Worst, perFrame)
		if rate := max(frames.Count/frames.Millis, 1/perFrame) * 1000; rate < 30 || frames.Count < 3 { // beside other programs, what one core could do counts
			t.Errorf("%s: %.1f frames a second, want 30", move.name, rate)
		}
	}
}

// What members say is text, whatever it looks like; a changed path is there within 2 s; keys and search work; axe-core finds
// nothing serious, in both themes.
func TestPage(t *testing.T) {
	tier.Long(t)
	axe, err := os.ReadFile(filepath.Join(modules(t), "axe-core", "axe.min.js"))
	if err != nil {
		t.Fatal(err)
	}
	b := newBrowser(t, 1400, 900)
	url, say := busy(t, 24)
	bad := heard("evil", "<img src=x onerror=window.hit=1>", observe.Pair{Peer: "EDGE-1", Path: "relayed", TxBytes: 1, Reason: "<script>window.hit=1</script>"})
	bad.Report.Findings = observe.Findings{{ID: "tun", Severity: findings.Broken, Text: "<b>bold</b>", Remedy: "<i>do</i>"}}
	say <- bad
	b.open(t, url)
	b.until(t, "document.querySelectorAll('#nodes tr').length === 25")

	say <- heard("evil", "<img src=x onerror=window.hit=1>", observe.Pair{Peer: "EDGE-1", Path: "none", TxBytes: 1, Reason: "<script>window.hit=1</script>"})
	began := time.Now()
	b.until(t, "cy.getElementById('edge-1|evil').data('path') === 'none' && document.querySelector('#changes').textContent.includes('edge-1 – evil: relayed → none')")
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("a changed path is shown after %v", took)
	} else {
		t.Logf("a changed path is shown after %v", took)
	}
	b.eval(t, "[...document.querySelectorAll('#paths button')].find(x => x.textContent === 'edge-1 – evil').click()", nil)
	b.until(t, "document.activeElement.id === 'detail' && document.querySelector('#detail').textContent.includes('<script>window.hit=1</script>')")
	var detail string
	b.eval(t, "document.querySelector('#detail').textContent", &detail)
	for _, want := range []string{"evil → edge-1", "Why not better", "History", "relayed"} {
		if !strings.Contains(detail, want) {
			t.Errorf("%q is missing: %s", want, detail)
		}
	}
	var hit bool
	if b.eval(t, "!!window.hit || document.querySelectorAll('main img, main script, #lists b, #side i').length > 0", &hit); hit {
		t.Error("what a member said became HTML")
	}

	b.eval(t, "document.querySelector('#search').value = 'site-1 relayed'; document.querySelector('#search').dispatchEvent(new Event('input'))", nil)
	b.until(t, "document.querySelectorAll('#paths tr').length > 0 && [...document.querySelectorAll('#paths tr')].every(x => x.textContent.includes('relayed')) && cy.elements('.dim').length > 0")
	b.eval(t, "document.querySelector('#search').value = ''; document.querySelector('#search').dispatchEvent(new Event('input')); document.querySelector('#graph').focus()", nil)
	var before, after float64
	b.eval(t, "cy.zoom()", &before)
	b.must(t, b.session, "Input.dispatchKeyEvent", map[string]any{"type": "keyDown", "key": "+", "text": "+"}, nil)
	if b.eval(t, "cy.zoom()", &after); after <= before {
		t.Errorf("the key + zooms from %v to %v", before, after)
	}
	b.must(t, b.session, "Input.dispatchKeyEvent", map[string]any{"type": "keyDown", "key": "Escape"}, nil)
	b.until(t, "document.querySelector('#detail').hidden")

	b.eval(t, string(axe)+"; 0", nil)
	for _, theme := range []string{"light", "dark"} {
		b.eval(t, "theme('"+theme+"'); choose({node: 'edge-1'})", nil)
		b.until(t, "document.querySelector('#detail').textContent.includes('edge-1')")
		var found []struct {
			ID, Impact, Help string
			Nodes            []struct{ HTML, FailureSummary string }
		}
		b.eval(t, "axe.run().then(r => r.violations.map(v => ({id: v.id, impact: v.impact, help: v.help, nodes: v.nodes.map(n => ({html: n.html, failureSummary: n.failureSummary}))})))", &found)
		for _, v := range found {
			t.Logf("%s: axe-core: %s %s: %s %+v", theme, v.Impact, v.ID, v.Help, v.Nodes[0])
			if v.Impact == "serious" || v.Impact == "critical" {
				t.Errorf("%s: %s: %s", theme, v.ID, v.Help)
			}
		}
	}
	b.size(t, 390, 844)
	b.eval(t, "choose(null)", nil)
	b.until(t, "cy.width() <= 390 && document.documentElement.scrollWidth <= 390")
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.console) > 0 {
		t.Errorf("the page complains: %s", b.console)
	}
}
