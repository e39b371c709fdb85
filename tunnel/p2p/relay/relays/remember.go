package relays

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"edgemesh/internal/durable"
)

// maxPlaces bounds the places that are remembered, maxRemembered their file in bytes.
const (
	maxPlaces     = 16
	maxRemembered = 64 << 10
)

// remembered is what was learned of the routers at each place where this node was, across restarts: a silence, by where relays see
// the site. The uplink and its NAT are another one elsewhere, as after a change from Ethernet to LTE, and the same again at home.
type remembered struct {
	path string // "": nothing outlives the process

	mu     sync.Mutex // a leaf: guards places
	places []place    // the last one used last

	write sync.Mutex // held while the file is written; taken before mu
}

// place is one entry of the file, which is JSON.
type place struct {
	At     string    `json:"at"`          // an IPv4 address, or the /64 of a site without
	Held   float64   `json:"heldSeconds"` // silence's held and failed over TCP
	Failed float64   `json:"failedSeconds"`
	Again  time.Time `json:"again,omitzero"`
	Pause  float64   `json:"pauseSeconds,omitempty"`
}

// open reads the file. What it cannot read is learned again.
func (r *remembered) open() error {
	if r.path == "" {
		return nil
	}
	data, err := os.ReadFile(r.path)
	switch {
	case os.IsNotExist(err):
		return nil
	case err == nil && len(data) > maxRemembered:
		err = fmt.Errorf("%d bytes", len(data))
	case err == nil:
		err = json.Unmarshal(data, &r.places)
	}
	r.places = r.places[max(0, len(r.places)-maxPlaces):]
	if err != nil {
		r.places = nil
		return fmt.Errorf("%s: %w", r.path, err)
	}
	return nil
}

// at returns what was learned at a place. date is the host's, now the clock that nobody sets: however the date has jumped since,
// what was too long is tried again in time.
func (r *remembered) at(where string, date time.Time, now time.Duration) (s silence, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(r.places, func(p place) bool { return p.At == where })
	if i < 0 {
		return silence{}, false
	}
	p := r.places[i]
	within := func(seconds float64, most time.Duration) time.Duration {
		return max(0, min(time.Duration(seconds*float64(time.Second)), most))
	}
	s = silence{held: within(p.Held, MostSilence), failed: within(p.Failed, 2*MostSilence), pause: within(p.Pause, keepAgainMost)}
	if s.failed > 0 {
		s.again = now + max(0, min(p.Again.Sub(date), s.pause))
	}
	return s, true
}

// note remembers what is known of a place, and reports whether that is new.
func (r *remembered) note(where string, s silence, date time.Time, now time.Duration) bool {
	p := place{At: where, Held: s.held.Seconds(), Failed: s.failed.Seconds(), Pause: s.pause.Seconds()}
	if s.failed > 0 {
		p.Again = date.Add(s.again - now).UTC().Truncate(time.Minute)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(r.places, func(o place) bool { return o.At == where })
	if i >= 0 {
		if o := r.places[i]; o.Held == p.Held && o.Failed == p.Failed && o.Pause == p.Pause {
			return false
		}
		r.places = slices.Delete(r.places, i, i+1)
	}
	r.places = append(r.places, p)
	r.places = r.places[max(0, len(r.places)-maxPlaces):]
	return true
}

// save writes the file.
func (r *remembered) save() error {
	if r.path == "" {
		return nil
	}
	r.write.Lock()
	defer r.write.Unlock()
	r.mu.Lock()
	data, err := json.MarshalIndent(r.places, "", "  ")
	r.mu.Unlock()
	if err == nil {
		err = durable.WriteFile(r.path, append(data, '\n'), 0o600)
	}
	return err
}
