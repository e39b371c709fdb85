package kube

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"edgemesh/internal/wake"
)

const (
	// glanceEvery is how often it is looked whether an edge-local cache was cut off from the API, as far as this host knows.
	glanceEvery = 2 * time.Second
	// pulseEvery is how often the API server is requested to answer through the cache where this host does not know that, and returnEvery while
	// it does not: what was deleted meanwhile is still taken for a member.
	pulseEvery  = 30 * time.Second
	returnEvery = 4 * time.Second
	// mostSeen is how many sessions are remembered.
	mostSeen = 100
	// listPause is between two times that everything is listed because the cache was cut off.
	listPause = time.Minute
	// relistEvery is how often everything is listed through a cache, at least; up to twice that. Its watches may lose what no outage explains.
	relistEvery = 20 * time.Minute
	// agreement is how long a controller's word counts that its membership is this node's: no list is needed.
	agreement = keptEvery*5/4 + lookEvery
)

// passing are the sessions of a cache that passes watches on: these end when it is cut off, and begin with a list.
func passing() []string { return []string{"passes watches on"} }

// outage decides when an edge-local cache is queried, and for what. The watches of one continue when its uplink is down, and never report
// what was deleted meanwhile.
type outage struct {
	seen   map[string]bool // sessions of the cache with the cloud, as this host has them; nil: not looked at
	sees   bool            // one of them, now
	away   bool            // it may have been cut off, and the API server has not answered since
	due    bool            // it was, and is no longer: what is known may lack something
	next   time.Time       // when to request an answer
	wait   time.Duration
	listed time.Time
	relist time.Time // when everything is listed anyway
}

// glance takes the sessions of now, none if that is not known, and says what to do. One that was not there before says that the cloud was
// lost meanwhile; one that is missing says nothing, for the kernel's list may leave out what is there, or have it twice.
func (o *outage) glance(now time.Time, sessions []string) (review, list, relist bool) {
	first := o.seen == nil
	if first {
		o.next, o.relist = now.Add(pulseEvery), later(now)
	}
	if first || len(o.seen) > mostSeen {
		o.seen = map[string]bool{}
	}
	o.sees = len(sessions) > 0
	for _, s := range sessions {
		if !o.seen[s] && !first {
			o.away, o.wait, o.next = true, returnEvery, now
		}
		o.seen[s] = true
	}
	paused := now.Before(o.listed.Add(listPause))
	switch {
	case o.due && !paused:
		o.due, o.listed, o.relist = false, now, later(now)
		return false, true, false
	case !now.Before(o.relist):
		o.relist = later(now)
		return false, false, true
	case o.sees && (!o.away || paused):
		return false, false, false
	}
	return !now.Before(o.next), false, false
}

func later(now time.Time) time.Time { return now.Add(relistEvery + rand.N(relistEvery)) }

// answered takes what became of a review.
func (o *outage) answered(now time.Time, err error) {
	if err == nil {
		o.due = o.due || o.away
		o.away, o.next = false, now.Add(pulseEvery)
		return
	}
	if !o.sees || !o.away { // without an uplink it costs nothing
		o.wait = returnEvery
	}
	o.away, o.next, o.wait = true, now.Add(o.wait), min(2*o.wait, listPause)
}

// watchOutages calls list when the cache was cut off, and from time to time, which is needed where no controller agrees, until ctx ends.
func (p *prover) watchOutages(ctx context.Context, sessions func() []string, list func(missed bool)) {
	var o outage
	for {
		review, missed, relist := o.glance(time.Now(), sessions())
		if missed || relist {
			list(missed)
		}
		if review {
			rctx, cancel := context.WithTimeout(ctx, requestTimeout)
			err := p.review(rctx) // the lists are proved themselves
			cancel()
			o.answered(time.Now(), err)
		}
		if !wake.Sleep(ctx, glanceEvery) {
			return
		}
	}
}

// edgeCore is edgecore's configuration, which agents of its edges may read.
const edgeCore = "/etc/kubeedge/config/edgecore.yaml"

// sessionsOf returns what says edgecore's connection to cloudcore: it makes another one after each outage, half a minute later, and closes
// the old one. Of two edgecores it is both. None without one, or where it cannot be known: over QUIC, with another file. edgecore is root's, or
// runs as the user uid: no other user's program has everything listed.
func sessionsOf(config string, uid int) func() []string {
	var last []string
	suffix := ""
	return func() []string {
		if len(last) == 0 { // else that is the port still
			port, err := cloudPort(config)
			if err != nil {
				return nil
			}
			suffix = fmt.Sprintf(":%04X", port)
		}
		last = connections(suffix, "0", strconv.Itoa(uid))
		return last
	}
}

// connections are those of these users over TCP to remote ports that the kernel lists with this suffix.
func connections(suffix string, users ...string) (all []string) {
	for _, file := range []string{"tcp", "tcp6"} {
		const localAt, remoteAt, stateAt, uidAt, inodeAt, established = 1, 2, 3, 7, 9, "01"
		list, err := os.ReadFile("/proc/thread-self/net/" + file)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // a kernel without IPv6
			return nil
		}
		for line := range strings.Lines(string(list)) {
			if f := strings.Fields(line); len(f) > inodeAt && f[stateAt] == established && slices.Contains(users, f[uidAt]) && strings.HasSuffix(f[remoteAt], suffix) {
				all = append(all, f[localAt]+" "+f[inodeAt])
			}
		}
	}
	return all
}

// cloudPort is cloudcore's that edgecore connects to by TCP.
func cloudPort(config string) (uint64, error) {
	text, err := os.ReadFile(config)
	if err != nil {
		return 0, err
	}
	var c struct {
		Modules struct {
			EdgeHub struct {
				WebSocket struct {
					Enable bool   `yaml:"enable"`
					Server string `yaml:"server"`
				} `yaml:"websocket"`
			} `yaml:"edgeHub"`
		} `yaml:"modules"`
	}
	if err := yaml.Unmarshal(text, &c); err != nil {
		return 0, err
	}
	hub := c.Modules.EdgeHub.WebSocket
	_, port, err := net.SplitHostPort(hub.Server)
	if err != nil || !hub.Enable {
		return 0, fmt.Errorf("%s: no websocket to cloudcore", config)
	}
	return strconv.ParseUint(port, 10, 16)
}
