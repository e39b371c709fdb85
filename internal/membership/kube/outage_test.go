package kube

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// What an edge-local cache is asked for, second by second: 30 s each without, and with, edgecore's session with the cloud in sight.
func TestOutage(t *testing.T) {
	type span struct {
		seconds int
		session string // "" is none in sight
		api     bool   // it answers
	}
	for name, x := range map[string]struct {
		spans           []span
		reviews, missed int           // at most; exactly
		listedAfter     time.Duration // of the last span's begin, at most
		relists         int
	}{
		"at rest":                              {[]span{{3600, "1", true}}, 0, 0, 0, 2},
		"watches are passed on":                {[]span{{3600, passing()[0], true}}, 0, 0, 0, 2},
		"no session in sight":                  {[]span{{600, "", true}}, 20, 0, 0, 1},
		"cut off, noticed":                     {[]span{{60, "1", true}, {600, "", false}, {60, "2", true}}, 170, 1, 4 * time.Second, 1},
		"cut off, no session in sight":         {[]span{{60, "", true}, {600, "", false}, {60, "", true}}, 170, 1, 6 * time.Second, 1},
		"another session, never away":          {[]span{{60, "1", true}, {60, "2", true}}, 1, 1, 4 * time.Second, 0},
		"boots without uplink":                 {[]span{{600, "", false}, {60, "1", true}}, 170, 1, 4 * time.Second, 1},
		"starts again while its uplink is cut": {[]span{{60, "1", true}, {20, "", false}, {10, "", false}, {60, "2", true}}, 10, 1, 4 * time.Second, 0},
		"one of two edgecores connects again":  {[]span{{60, "1 2", true}, {60, "2 3", true}}, 1, 1, 4 * time.Second, 0},
		"listed twice, then not at all":        {[]span{{60, "1", true}, {2, "1 1", true}, {2, "", true}, {60, "1", true}}, 1, 0, 0, 0},
		"one of two is not listed":             {[]span{{60, "1 2", true}, {2, "2", true}, {60, "1 2", true}}, 0, 0, 0, 0},
		"the session is there first":           {[]span{{60, "1", true}, {60, "", false}, {5, "2", false}, {30, "2", true}}, 22, 1, 10 * time.Second, 0},
		"connects again every 10 s":            {[]span{{10, "1", true}, {10, "2", true}, {10, "3", true}, {10, "4", true}, {10, "5", true}, {10, "6", true}, {10, "7", true}, {10, "8", true}}, 3, 2, time.Minute, 0},
		"it never answers":                     {[]span{{10, "1", true}, {600, "2", false}}, 16, 0, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			var o outage
			now := time.Now()
			reviews, missed, relists := 0, 0, 0
			var began, listed time.Time
			for _, s := range x.spans {
				began = now
				for end := now.Add(time.Duration(s.seconds) * time.Second); now.Before(end); now = now.Add(glanceEvery) {
					review, cut, relist := o.glance(now, strings.Fields(s.session))
					if cut {
						missed++
						listed = now
					}
					if relist {
						relists++
					}
					if review {
						reviews++
						var err error
						if !s.api {
							err = errors.New("no answer")
						}
						o.answered(now, err)
					}
				}
			}
			if reviews > x.reviews || missed != x.missed || relists > x.relists || x.missed > 0 && listed.Sub(began) > x.listedAfter {
				t.Errorf("%d reviews, everything listed %d times because of an outage, last %v after it, and %d times anyway; want %d, %d, %v and %d",
					reviews, missed, listed.Sub(began), relists, x.reviews, x.missed, x.listedAfter, x.relists)
			}
		})
	}
}

// edgecore's session is what the kernel lists of connections to the port that its configuration names.
func TestSessionsOf(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	config := filepath.Join(t.TempDir(), "edgecore.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const hub = "modules: {edgeHub: {websocket: {enable: %v, server: '%s'}, quic: {enable: false}}}\n"
	write(fmt.Sprintf(hub, true, l.Addr()))
	sessions := sessionsOf(config, os.Geteuid())
	session := func() string { return strings.Join(sessions(), " ") }
	if got := session(); got != "" {
		t.Errorf("without a connection: %q", got)
	}
	connect := func() net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	first := connect()
	one := session()
	if one == "" || session() != one {
		t.Errorf("one connection: %q, then %q", one, session())
	}
	first.Close()
	second := connect()
	defer second.Close()
	if two := session(); two == "" || two == one {
		t.Errorf("another connection: %q, was %q", two, one)
	}
	if got := connections(fmt.Sprintf(":%04X", l.Addr().(*net.TCPAddr).Port), "12345"); got != nil {
		t.Errorf("another user's connections: %q", got)
	}
	for _, text := range []string{"", "modules: [", fmt.Sprintf(hub, false, l.Addr()), fmt.Sprintf(hub, true, "cloud"), fmt.Sprintf(hub, true, "cloud:99999")} {
		if write(text); sessionsOf(config, os.Geteuid())() != nil {
			t.Errorf("%q: %q", text, sessionsOf(config, os.Geteuid())())
		}
	}
	if got := sessionsOf(config+".none", os.Geteuid())(); got != nil {
		t.Errorf("without a configuration: %q", got)
	}
}
