package e2e

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"edgemesh/test/lab"
)

func (s *sites) brokenMembership(t *testing.T) {
	good := s.lab.Cluster.YAML()
	for name, content := range map[string]string{
		"torn":          good[:len(good)/2],
		"unknown field": good + "podCIDR: 10.0.0.0/8\n",
		"empty":         "",
		"without me":    s.lab.Cluster.Without("edge-1").YAML(),
	} {
		before := s.edge1.Agent.Tail(1 << 20)
		ok(t, lab.ReplaceFile(s.edge1.Membership, content))
		err := lab.Until(within(t, 2*time.Second), 50*time.Millisecond, func() error {
			if strings.Contains(strings.TrimPrefix(s.edge1.Agent.Tail(1<<20), before), s.edge1.Membership) {
				return nil
			}
			return errors.New("not reported")
		})
		if err != nil {
			t.Errorf("%s: the log does not name the file within 2 s: %v", name, err)
		}
		if status, err := s.edge1.Status(t.Context()); err != nil || !slices.ContainsFunc(status.Problems, func(p lab.Problem) bool {
			return p.Check == "membership" && strings.Contains(p.Detail, "the last good membership is in force")
		}) {
			t.Errorf("%s: status does not tell: %v, %v", name, status.Problems, err)
		}
		curlPods(t, s.pod1, s.pod2, time.Second)
		curlPods(t, s.pod2, s.pod1, time.Second)
	}
	ok(t, os.Remove(s.edge1.Membership))
	time.Sleep(500 * time.Millisecond) // sleep: a removed file is no new membership either
	curlPods(t, s.pod1, s.pod2, time.Second)
	ok(t, lab.ReplaceFile(s.edge1.Membership, good))
	ok(t, lab.Until(within(t, 2*time.Second), 50*time.Millisecond, func() error {
		status, err := s.edge1.Status(t.Context())
		if err == nil && len(status.Problems) > 0 {
			err = fmt.Errorf("status still tells of problems: %v", status.Problems)
		}
		return err
	}))
	if !s.edge1.Agent.Running() {
		t.Error("the agent has ended")
	}
}

// removedMember takes edge-3 out of everybody's membership but its own.
func (s *sites) removedMember(t *testing.T) {
	s.cutOff(t, s.lab.Cluster.Without("edge-3"))
	s.backAgain(t)
}

// bannedMember has everybody but itself refuse edge-3, which all still list: by its name, by its peer ID. An agent and a
// relay that start without a membership file, from their snapshot, refuse it as well.
func (s *sites) bannedMember(t *testing.T) {
	banning := s.lab.Cluster
	banning.Banned = []string{"edge-3"}
	s.cutOff(t, banning)
	s.backAgain(t)

	banning.Banned = []string{s.edge3.PeerID}
	s.cutOff(t, banning)
	ok(t, os.Remove(s.edge2.Membership))
	ok(t, os.Remove(s.relay.Membership))
	ok(t, s.edge2.Agent.Stop())
	s.relay.Process.Kill()
	ok(t, s.relay.Start())
	ok(t, s.edge2.Start())
	ready(t, s.edge2)
	curlPods(t, s.pod1, s.pod2, 10*time.Second)
	curlPods(t, s.podCloud, s.pod2, 5*time.Second)
	noAnswer(t, s.pod3.NS, s.pod2.IP4(), "from the banned member, after a restart")
	noAnswer(t, s.pod2.NS, s.pod3.IP4(), "to the banned member, after a restart")
	s.backAgain(t)
}

// unlabelledMember has everybody but itself ask for a label that all nodes carry but edge-3.
func (s *sites) unlabelledMember(t *testing.T) {
	const key = "node-restriction.kubernetes.io/mesh"
	asking := s.lab.Cluster.Labelled(key, "yes", "edge-3")
	asking.AdmitLabel = key + "=yes"
	s.cutOff(t, asking)
	s.backAgain(t)
}

// cutOff gives everybody but edge-3 a membership that does not have it.
func (s *sites) cutOff(t *testing.T, rest lab.Cluster) {
	t.Helper()
	curlPods(t, s.pod3, s.pod2, 2*time.Second)
	curlPods(t, s.podCloud, s.pod3, 2*time.Second)
	curlPods(t, s.pod3, s.pod1, 2*time.Second)
	for n, kinds := range map[*lab.Node][]string{s.edge2: {"punched"}, s.cloud1: {"direct"}, s.edge1: {"direct", "native", "vxlan"}} {
		_, err := s.edge3.WaitPath(within(t, 15*time.Second), n, kinds...)
		ok(t, err)
	}
	ways := [][2]*lab.Pod{{s.pod3, s.pod1}, {s.pod3, s.pod2}, {s.pod3, s.podCloud}, {s.podCloud, s.pod3}}
	answered(t, ways)
	for _, n := range s.lab.Nodes() {
		if n != s.edge3 {
			ok(t, lab.ReplaceFile(n.Membership, rest.YAML()))
		}
	}
	ok(t, lab.ReplaceFile(s.relay.Membership, rest.YAML()))
	cutOffWithin2s(t, ways)
	noAnswer(t, s.pod3.NS, s.pod2.IP4(), "from the removed member")
	noAnswer(t, s.pod3.NS, s.podCloud.IP4(), "from the removed member to the cloud")
	noAnswer(t, s.podCloud.NS, s.pod3.IP4(), "to the removed member")
	st, err := s.edge1.Status(t.Context())
	ok(t, err)
	if st.Peer("edge-3").Path != "" {
		t.Error("status still lists the removed member")
	}
	curlPods(t, s.pod1, s.pod2, 2*time.Second) // the others do not notice
}

// backAgain makes edge-3 a member again.
func (s *sites) backAgain(t *testing.T) {
	t.Helper()
	ok(t, s.lab.WriteMembership())
	start := time.Now()
	ctx := within(t, 2*time.Second)
	err := lab.Until(ctx, 20*time.Millisecond, func() error {
		st, err := s.edge1.Status(ctx)
		if err == nil && st.Peer("edge-3").Path == "" {
			err = errors.New("not listed")
		}
		return err
	})
	if err != nil {
		t.Errorf("member again, after 2 s: %v", err)
	}
	ctx = within(t, 10*time.Second)
	err = lab.Until(ctx, 100*time.Millisecond, func() error {
		return tryCurl(ctx, s.pod3.NS, s.pod2, s.pod2.IP4(), s.pod3.IP4(), time.Second)
	})
	if err != nil {
		t.Errorf("member again, after 10 s: %v", err)
	}
	t.Logf("member again: first curl after %d ms", time.Since(start).Milliseconds())
	// The relay had refused it, too: who dials it finds it once it has its reservation again, which it asks for with pauses.
	ctx = within(t, 20*time.Second)
	err = lab.Until(ctx, 100*time.Millisecond, func() error {
		return tryCurl(ctx, s.podCloud.NS, s.pod3, s.pod3.IP4(), s.podCloud.IP4(), time.Second)
	})
	if err != nil {
		t.Errorf("member again, from the cloud, after 20 s: %v", err)
	} else {
		t.Logf("member again: first curl from the cloud after %d ms", time.Since(start).Milliseconds())
	}
}
