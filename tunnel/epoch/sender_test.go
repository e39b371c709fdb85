package epoch

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// start is when the tests begin.
const start = 1000 * time.Second

// scene is a machine and the time it lives in.
type scene struct {
	t   *testing.T
	s   Sender
	now Time
}

func newScene(t *testing.T) *scene {
	return &scene{t, NewSender(Config{RetryMin: 50 * time.Millisecond, RetryMax: 2 * time.Second}), start}
}

// do carries out one line of a table, and returns the order that it leads to.
func (c *scene) do(line string) string {
	c.t.Helper()
	event, args, _ := strings.Cut(line, " ")
	with := func(word string) bool { return strings.Contains(args, word) }
	var epoch uint64
	_, _ = fmt.Sscan(args, &epoch)
	switch event {
	case "next": // what the owner sees follows
		return c.show(c.s.Next(c.now, Situation{Packets: with("packets"), Quiet: with("quiet"), Idle: with("idle")}))
	case "opened":
		return c.show(c.s.Opened(c.now, true))
	case "failed":
		return c.show(c.s.Opened(c.now, false))
	case "sent":
		return c.show(c.s.Sent(c.now, epoch, false))
	case "broke":
		return c.show(c.s.Sent(c.now, epoch, true))
	case "stuck":
		return c.show(c.s.Stuck(epoch))
	case "better":
		return c.show(c.s.PathChanged(c.now, with("quiet")))
	case "lost":
		return c.show(c.s.PathLost(c.now, !with("elsewhere"), with("quiet")))
	case "close":
		return c.show(c.s.Close())
	case "pass":
		d, err := time.ParseDuration(args)
		if err != nil {
			c.t.Fatal(err)
		}
		c.now += d
		return ""
	}
	c.t.Fatalf("no such event: %q", line)
	return ""
}

// show writes an order down in a few words.
func (c *scene) show(o Order) string {
	switch o.Do {
	case Open:
		return fmt.Sprintf("open %d after %d", o.Carrier.Epoch, o.Carrier.After)
	case Send:
		return fmt.Sprintf("send on %d", c.s.Used())
	case Switch:
		return fmt.Sprintf("switch to %d", c.s.Used())
	case Wait:
		switch o.Wait {
		case Never:
			return "wait"
		case 0:
			return ""
		}
		return fmt.Sprintf("wait %v", o.Wait)
	}
	return [...]string{Hurry: "hurry", Abandon: "abandon", Finish: "finish", Rest: "rest"}[o.Do]
}

// up are the lines that bring a lane up on carrier 1.
const up = `
	next packets       -> open 1 after 0
	opened             ->
	next packets       -> switch to 1`

// TestSender: each line is an event, the order that follows and, behind a #, the state where it matters.
func TestSender(t *testing.T) {
	for name, script := range map[string]string{
		"first packet": `
			next packets       -> open 1 after 0 # down
			next packets       -> wait
			opened             ->
			next packets       -> switch to 1 # up
			next packets       -> send on 1
			sent 1             ->
			next               -> wait # up`,
		"nothing to send": `
			next               -> rest # down`,
		"the packets expired while it was opening": `
			next packets       -> open 1 after 0
			next               -> wait
			opened             ->
			next               -> switch to 1 # up`,
		"no path, and pauses that double": `
			next packets       -> open 1 after 0
			failed             -> wait 50ms
			next packets       -> wait 50ms
			pass 20ms          ->
			next packets       -> wait 30ms
			pass 30ms          ->
			next packets       -> open 2 after 0
			failed             -> wait 100ms
			pass 100ms         ->
			next packets       -> open 3 after 0
			failed             -> wait 200ms
			next               -> rest # down`,
		"a path ends the pause": `
			next packets       -> open 1 after 0
			failed             -> wait 50ms
			better             ->
			next packets       -> open 2 after 0`,
		"a better path": up + `
			better             -> open 2 after 1 # moving
			next packets       -> send on 1
			sent 1             ->
			opened             -> # moving
			next packets       -> switch to 2 # up
			next packets       -> send on 2`,
		"a better path while the first carrier is opened": `
			next packets       -> open 1 after 0
			better             ->
			opened             ->
			next packets       -> switch to 1
			next packets       -> open 2 after 1 # moving
			next packets       -> send on 1`,
		"a better path while another is opened": up + `
			better             -> open 2 after 1
			better             ->
			opened             ->
			better             ->
			next               -> switch to 2
			next               -> open 3 after 2`,
		"a better path that cannot be had": up + `
			better             -> open 2 after 1
			failed             -> wait 50ms # moving
			next               -> wait 50ms
			pass 50ms          ->
			next               -> open 3 after 1
			failed             -> wait 100ms
			pass 1s            ->
			next               -> open 4 after 1
			failed             -> wait 200ms
			pass 1s            ->
			next               -> open 5 after 1
			failed             -> wait 400ms
			pass 1s            ->
			next               -> open 6 after 1
			failed             -> wait 800ms
			pass 1s            ->
			next               -> wait # up`,
		"a better path for a quiet lane": up + `
			better quiet       -> # up
			next quiet         -> wait
			next packets       -> open 2 after 1`,
		"stuck on the old path": up + `
			next packets       -> send on 1
			better             -> open 2 after 1
			opened             -> hurry
			stuck 1            -> abandon # down
			broke 1            ->
			next packets       -> switch to 2`,
		"slow, but not stuck": up + `
			next packets       -> send on 1
			better             -> open 2 after 1
			opened             -> hurry
			sent 1             ->
			stuck 1            ->
			next packets       -> switch to 2
			next packets       -> send on 2
			stuck 1            -> # up`,
		"path lost": up + `
			lost               -> abandon # down
			next packets       -> open 2 after 1`,
		"path lost, nothing to send": up + `
			lost               -> abandon
			next               -> rest # down
			next packets       -> open 2 after 1`,
		"path lost inside Write": up + `
			next packets       -> send on 1
			lost               -> abandon
			broke 1            ->
			next packets       -> open 2 after 1`,
		"path lost with a better one ready": up + `
			better             -> open 2 after 1
			opened             ->
			lost               -> abandon
			next packets       -> switch to 2`,
		"path lost with a better one being opened": up + `
			better             -> open 2 after 1
			lost               -> abandon
			next packets       -> wait
			opened             ->
			next packets       -> switch to 2
			next packets       -> open 3 after 2`,
		"another path lost": up + `
			lost elsewhere     -> open 2 after 1 # moving`,
		"broke early": up + `
			next packets       -> send on 1
			broke 1            -> abandon # down
			next packets       -> wait 50ms`,
		"broke after a good life": up + `
			pass 2s            ->
			next packets       -> send on 1
			broke 1            -> abandon
			next packets       -> open 2 after 1`,
		"idle": up + `
			next packets idle  -> send on 1
			sent 1             ->
			next idle          -> finish # down
			next               -> rest
			next packets       -> open 2 after 0`,
		"idle while a better path is opened": up + `
			better             -> open 2 after 1
			next idle          -> wait
			opened             ->
			next idle          -> switch to 2
			next idle          -> finish
			next               -> rest`,
		"closed": up + `
			close              ->`,
		"closed inside Write": up + `
			next packets       -> send on 1
			close              -> abandon
			broke 1            ->`,
	} {
		t.Run(name, func(t *testing.T) { newScene(t).play(script) })
	}
}

func (c *scene) play(script string) {
	c.t.Helper()
	for line := range strings.Lines(strings.TrimSpace(script)) {
		line, state, _ := strings.Cut(line, "#")
		event, want, _ := strings.Cut(line, "->")
		if got := c.do(strings.TrimSpace(event)); got != strings.TrimSpace(want) {
			c.t.Fatalf("%s: %q", strings.TrimSpace(line), got)
		}
		if state = strings.TrimSpace(state); state != "" && state != [...]string{"down", "up", "moving"}[c.s.State()] {
			c.t.Fatalf("%s: state %d, want %s", strings.TrimSpace(line), c.s.State(), state)
		}
	}
}
