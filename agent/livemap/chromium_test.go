package livemap

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"edgemesh/test/fair"
)

// browser is a Chromium that is spoken to through two pipes, by the DevTools protocol.
type browser struct {
	out     *os.File
	session string

	mu      sync.Mutex // a leaf
	id      int
	waiting map[int]chan answer
	ended   error
	console []string // errors that pages have logged
}

type answer struct {
	Result json.RawMessage
	Error  *struct{ Message string }
}

// newBrowser starts a Chromium with one page of that size, or skips the test.
func newBrowser(t *testing.T, wide, high int, args ...string) *browser {
	t.Helper()
	program, err := exec.LookPath("chromium")
	if err != nil {
		program, err = exec.LookPath("chromium-headless-shell")
	}
	if err != nil {
		t.Fatal("no browser is installed: apt-get install chromium-headless-shell")
	}
	in, theirOut, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	theirIn, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	c := exec.CommandContext(ctx, program, append([]string{"--headless=new", "--no-sandbox", "--remote-debugging-pipe", "--disable-gpu", "--disable-gpu-rasterization", "--disable-accelerated-2d-canvas", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-extensions", "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
		"--user-data-dir=" + t.TempDir(), fmt.Sprintf("--window-size=%d,%d", wide, high)}, args...)...)
	c.ExtraFiles, c.WaitDelay = []*os.File{theirIn, theirOut}, 5*time.Second
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	theirIn.Close()
	theirOut.Close()
	b := &browser{out: out, waiting: map[int]chan answer{}}
	var reading sync.WaitGroup
	reading.Go(func() { b.read(in) })
	t.Cleanup(func() {
		_, _ = b.call("", "Browser.close", nil)
		out.Close()
		time.AfterFunc(5*time.Second, stop)
		_ = c.Wait()
		stop()
		reading.Wait()
		in.Close()
	})
	var made struct{ TargetID, SessionID string }
	b.must(t, "", "Target.createTarget", map[string]any{"url": "about:blank"}, &made)
	b.must(t, "", "Target.activateTarget", map[string]any{"targetId": made.TargetID}, nil) // one in the background draws once a second
	b.must(t, "", "Target.attachToTarget", map[string]any{"targetId": made.TargetID, "flatten": true}, &made)
	b.session = made.SessionID
	for _, domain := range []string{"Page.enable", "Runtime.enable", "Log.enable"} {
		b.must(t, b.session, domain, nil, nil)
	}
	b.size(t, wide, high)
	return b
}

// read hands answers to those who wait for them.
func (b *browser) read(in *os.File) {
	s := bufio.NewReaderSize(in, 1<<20)
	for {
		line, err := s.ReadBytes(0)
		if err != nil {
			b.mu.Lock()
			b.ended = errors.New("the browser has ended")
			for _, c := range b.waiting {
				close(c)
			}
			b.waiting = nil
			b.mu.Unlock()
			return
		}
		var m struct {
			ID     int
			Method string
			Params json.RawMessage
			answer
		}
		if json.Unmarshal(line[:len(line)-1], &m) != nil {
			continue
		}
		b.mu.Lock()
		switch {
		case m.ID != 0 && b.waiting[m.ID] != nil:
			b.waiting[m.ID] <- m.answer
			delete(b.waiting, m.ID)
		case m.Method == "Runtime.exceptionThrown", m.Method == "Log.entryAdded" && strings.Contains(string(m.Params), `"level":"error"`):
			b.console = append(b.console, string(m.Params))
		}
		b.mu.Unlock()
	}
}

// call makes one call and waits for its answer, a minute at most.
func (b *browser) call(session, method string, params any) (json.RawMessage, error) {
	b.mu.Lock()
	if b.ended != nil {
		b.mu.Unlock()
		return nil, b.ended
	}
	b.id++
	id, c := b.id, make(chan answer, 1)
	b.waiting[id] = c
	b.mu.Unlock()
	msg := map[string]any{"id": id, "method": method}
	if params != nil {
		msg["params"] = params
	}
	if session != "" {
		msg["sessionId"] = session
	}
	text, err := json.Marshal(msg)
	if err != nil {
		return nil, err
	}
	if _, err := b.out.Write(append(text, 0)); err != nil {
		return nil, err
	}
	select {
	case a, ok := <-c:
		if !ok {
			return nil, errors.New("the browser has ended")
		}
		if a.Error != nil {
			return nil, fmt.Errorf("%s: %s", method, a.Error.Message)
		}
		return a.Result, nil
	case <-time.After(time.Minute):
		return nil, fmt.Errorf("%s: no answer", method)
	}
}

func (b *browser) must(t *testing.T, session, method string, params, into any) {
	t.Helper()
	r, err := b.call(session, method, params)
	if err != nil {
		t.Fatal(err)
	}
	if into != nil {
		if err := json.Unmarshal(r, into); err != nil {
			t.Fatal(err)
		}
	}
}

// eval runs a script in the page; what it returns, or promises, is read into into.
func (b *browser) eval(t *testing.T, script string, into any) {
	t.Helper()
	var r struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails json.RawMessage
	}
	b.must(t, b.session, "Runtime.evaluate", map[string]any{"expression": script, "awaitPromise": true, "returnByValue": true}, &r)
	if r.ExceptionDetails != nil {
		t.Fatalf("%.200s: %.1000s", script, r.ExceptionDetails)
	}
	if into != nil && r.Result.Value != nil {
		if err := json.Unmarshal(r.Result.Value, into); err != nil {
			t.Fatalf("%.200s: %v", script, err)
		}
	}
}

// until waits for a script to be true.
func (b *browser) until(t *testing.T, script string) {
	t.Helper()
	fair.Eventually(t, 30*time.Second, script, fair.True(func() (ok bool) { b.eval(t, "!!("+script+")", &ok); return ok }))
}

func (b *browser) open(t *testing.T, url string) {
	t.Helper()
	b.must(t, b.session, "Page.navigate", map[string]any{"url": url}, nil)
	b.until(t, "document.readyState === 'complete' && window.cy && cy.nodes().length > 0")
}

// cpu is what all processes of the browser have used, in seconds.
func (b *browser) cpu(t *testing.T) (sum float64) {
	t.Helper()
	var r struct {
		ProcessInfo []struct {
			Type    string
			CPUTime float64
		}
	}
	b.must(t, "", "SystemInfo.getProcessInfo", nil, &r)
	for _, p := range r.ProcessInfo {
		sum += p.CPUTime
	}
	return sum
}

// size is that of the window; below 600 it is a phone's.
func (b *browser) size(t *testing.T, wide, high int) {
	t.Helper()
	b.must(t, b.session, "Emulation.setDeviceMetricsOverride", map[string]any{"width": wide, "height": high, "deviceScaleFactor": 1, "mobile": wide < 600}, nil)
}

// shot writes a screenshot into $EDGEMESH_BROWSER, where that is a directory.
func (b *browser) shot(t *testing.T, name string) {
	t.Helper()
	dir := os.Getenv("EDGEMESH_BROWSER")
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return
	}
	var r struct{ Data string }
	b.must(t, b.session, "Page.captureScreenshot", map[string]any{"format": "webp", "quality": 50}, &r)
	picture, err := base64.StdEncoding.DecodeString(r.Data)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "map-"+name+".webp"), picture, 0o644)
	}
	if err != nil {
		t.Error(err)
	}
}
