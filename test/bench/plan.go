package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"edgemesh/test/bench/report"
)

// plan says how much is measured.
type plan struct {
	rounds                     int
	flow                       time.Duration // one bulk flow; iperf3 takes whole seconds
	linkFlow                   time.Duration // the same over the link
	edgeFlow                   time.Duration // the same at the rates of an edge
	carriers, linkCarriers     []string
	edgeCarriers               []string
	hubCarriers                []string
	edges, hubTurns, hubRounds int           // of a hub
	hubEvery                   time.Duration // a turn: each edge is asked once
	pings                      int           // on the idle path
	answers                    time.Duration // of 1-byte requests, in each form
	turns                      int           // of short requests on one LAN, in each round
	packetSteps                int           // rates tried in the first round
	packetTime                 time.Duration // of one step
	requests                   time.Duration // of requests of each form, and of small datagrams
	packetLoss                 float64       // share that counts as none
	mayFail                    []string      // carriers whose values a run can do without
	members                    int           // of the idle agent
	quiet, idle                time.Duration // before it is watched, and for how long
	peers                      []int         // that a node's kernel knows
	benchTime                  string        // of one Go benchmark
}

// fullPlan is for figures: 20 minutes on two cores.
func fullPlan() plan {
	return plan{
		rounds: 3, flow: 4 * time.Second, linkFlow: 10 * time.Second,
		carriers: carrierNames(), linkCarriers: []string{veth, report.Reference, report.Direct},
		edgeFlow: 8 * time.Second, edgeCarriers: []string{report.Reference, report.Direct},
		hubCarriers: []string{report.Direct}, edges: 40, hubTurns: 12, hubRounds: 1, hubEvery: 5 * time.Second,
		pings: 20, answers: 700 * time.Millisecond, turns: 6,
		packetSteps: 6, packetTime: 2 * time.Second,
		requests:   time.Second,
		packetLoss: 0.001, // what a busy machine's receiver drops because it is not run in time
		members:    1000, quiet: 10 * time.Second, idle: 20 * time.Second,
		peers: []int{1, 10, 100, 1000, 10_000}, benchTime: "200ms",
	}
}

// shortPlan is for tests: every row and value, no precision. What others' programs cannot do on a machine that is busy is no
// failure of ours, and neither are datagrams lost there: some must arrive.
func shortPlan() plan {
	return plan{
		rounds: 1, flow: time.Second, linkFlow: time.Second,
		carriers: carrierNames(), linkCarriers: []string{report.Reference, report.Direct},
		edgeFlow: time.Second, edgeCarriers: []string{report.Reference, report.Direct},
		hubCarriers: []string{report.Direct}, edges: 2, hubTurns: 1, hubRounds: 1, hubEvery: time.Second,
		pings: 3, answers: 100 * time.Millisecond, turns: 1,
		packetSteps: 1, packetTime: time.Second, requests: time.Second, packetLoss: 0.5, mayFail: foreignCarriers(),
		members: 50, quiet: 500 * time.Millisecond, idle: time.Second,
		peers: []int{1, 20}, benchTime: "100x",
	}
}

// set changes what the flags say; 0 leaves the plan's own.
func (p *plan) set(rounds int, flow time.Duration) {
	if rounds != 0 {
		p.rounds, p.hubRounds = rounds, rounds
	}
	if flow != 0 {
		p.flow, p.linkFlow, p.edgeFlow = flow, flow, flow
	}
}

func (p plan) check() error {
	if p.rounds < 1 || p.flow < time.Second || p.linkFlow < time.Second {
		return errors.New("-rounds, -time: at least one round of one second")
	}
	for _, name := range slices.Concat(p.carriers, p.linkCarriers, p.edgeCarriers) {
		if !slices.Contains(append(carrierNames(), report.Before), name) {
			return fmt.Errorf("-carriers: no carrier %q: choose from %s", name, strings.Join(carrierNames(), ", "))
		}
	}
	return nil
}

// lasts is about how long a part takes, without setting up.
func (p plan) lasts(part string) time.Duration {
	const start = 300 * time.Millisecond // of a program
	rounds, answers := time.Duration(p.rounds), p.answers+start
	carriers, links := time.Duration(len(p.carriers)), time.Duration(len(p.linkCarriers))
	pings := time.Duration(p.pings) * pingInterval
	switch part {
	case report.Clean:
		return rounds * carriers * (pings + 2*(p.flow+start) + 2*answers)
	case report.LAN:
		turns := time.Duration(p.turns) * (answerTime + start)
		return rounds * time.Duration(len(lanCarriers())) * (pings + 2*(p.flow+start) + 2*answers + turns)
	case report.Packets:
		steps := p.packetSteps + (p.rounds-1)*max(1, p.packetSteps-packetsKnown)
		return carriers * time.Duration(steps) * (p.packetTime + start)
	case report.Requests:
		return rounds * links * 3 * (p.requests + start)
	case report.Link:
		return rounds * links * (time.Duration(len(linkLosses()))*(p.linkFlow+pings+start) + p.linkFlow + 2*streamMargin)
	case report.Edge:
		return rounds * time.Duration(len(p.edgeCarriers)*len(edgeRows())) * (p.edgeFlow + start)
	case report.Hub:
		return time.Duration(p.hubRounds*len(p.hubCarriers)) * (time.Duration(p.edges)*start + time.Duration(p.hubTurns)*p.hubEvery)
	case report.Idle:
		return p.quiet + p.idle
	case report.Egress:
		return rounds * time.Duration(len(egressMethods())*len(p.peers)) * (egressFlow + start + answers)
	}
	return 40 * time.Second // tests, built and run
}
