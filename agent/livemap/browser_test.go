package livemap

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"edgemesh/agent/observe"
)

// modules installs what the lock file names, outside of the source tree.
func modules(t *testing.T) string {
	t.Helper()
	if os.Getenv("EDGEMESH_BROWSER") == "" {
		t.Skip("make map-browser runs it: it needs npm and its registry")
	}
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
				time.Sleep(3 * time.Second / time.Duration(n))
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

// 500 nodes: painted within a second, and moved at 30 frames a second while all of them report.
func TestSmooth(t *testing.T) {
	b := newBrowser(t, 1600, 1000)
	blank(t, b)
	url, _ := busy(t, 500)
	b.open(t, url)
	b.until(t, "cy.nodes('[class!=\"site\"]').length >= 500 && cy.edges().length > 1000")
	var paint float64
	b.eval(t, "performance.getEntriesByName('first-contentful-paint')[0].startTime", &paint)
	var drawn struct{ Nodes, Edges int }
	b.eval(t, "({nodes: cy.nodes().length, edges: cy.edges().length})", &drawn)
	t.Logf("first paint after %.0f ms; %d nodes, %d edges", paint, drawn.Nodes, drawn.Edges)
	if paint > 1000 {
		t.Errorf("first paint after %.0f ms, want 1000 at most", paint)
	}
	b.shot(t, "500-light")
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
	axe, err := os.ReadFile(filepath.Join(modules(t), "axe-core", "axe.min.js"))
	if err != nil {
		t.Fatal(err)
	}
	b := newBrowser(t, 1400, 900)
	url, say := busy(t, 24)
	bad := heard("evil", "<img src=x onerror=window.hit=1>", observe.Pair{Peer: "EDGE-1", Path: "relayed", TxBytes: 1, Reason: "<script>window.hit=1</script>"})
	bad.Report.Problems = []string{"<b>bold</b>"}
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
	if b.eval(t, "!!window.hit || document.querySelectorAll('main img, main script, #lists b').length > 0", &hit); hit {
		t.Error("what a member said became HTML")
	}
	b.shot(t, "pair-light")

	b.eval(t, "document.querySelector('#search').value = 'site-1 relayed'; document.querySelector('#search').dispatchEvent(new Event('input'))", nil)
	b.until(t, "document.querySelectorAll('#paths tr').length > 0 && [...document.querySelectorAll('#paths tr')].every(x => x.textContent.includes('relayed')) && cy.elements('.dim').length > 0")
	b.shot(t, "search")
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
		b.shot(t, "node-"+theme)
	}
	b.must(t, b.session, "Emulation.setDeviceMetricsOverride", map[string]any{"width": 420, "height": 900, "deviceScaleFactor": 1, "mobile": true}, nil)
	b.eval(t, "choose(null)", nil)
	b.until(t, "cy.width() <= 420 && document.documentElement.scrollWidth <= 420")
	b.shot(t, "narrow")
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.console) > 0 {
		t.Errorf("the page complains: %s", b.console)
	}
}
