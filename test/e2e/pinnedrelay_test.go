package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"edgemesh/test/fair"
	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

// TestRelayByOneKey: with the chart as it is, a relay that pins the key in the PodNetwork's status, and has neither a list of members nor access to
// the API, serves them; bans and deleted Nodes reach it through the members, and it starts with what it knows.
func TestRelayByOneKey(t *testing.T) {
	tier.Long(t)
	u := newUpgraded(t, &chart{}, "")
	r := u.lab.Relays[0]
	r.Signers = []string{u.signer(t)}
	restart := func() {
		t.Helper()
		ok(t, r.Process.Stop())
		ok(t, r.Start())
	}
	ok(t, os.Remove(r.Membership))
	restart()
	for _, n := range []*lab.Node{u.a, u.b} {
		ok(t, n.WaitReserved(within(t, time.Minute)))
	}
	curlPods(t, u.podA, u.podB, 20*time.Second)

	read := 0 // of the relay's log
	out := func(what string, most time.Duration) {
		t.Helper()
		clock := fair.Start()
		defer clock.Stop()
		ok(t, lab.Until(within(t, 2*time.Minute), 50*time.Millisecond, func() error {
			log, err := os.ReadFile(r.Process.Log)
			if err == nil && !strings.Contains(string(log[min(read, len(log)):]), what+" node="+u.b.Name) {
				err = fmt.Errorf("the relay has not said %q of %s", what, u.b.Name)
			} else if err == nil {
				read = len(log)
			}
			return err
		}))
		if d := clock.Elapsed(); d > most {
			t.Errorf("%s after %v", what, d)
		}
		ok(t, u.a.WaitReserved(within(t, time.Minute)))
	}
	banned := func(list string) {
		t.Helper()
		_, err := u.c.Kubectl("patch", "podnetwork", "cluster", "--type=merge", "-p", `{"spec":{"banned":[`+list+`]}}`)
		ok(t, err)
	}
	banned(`"` + u.b.Name + `"`)
	const cut = `msg="peer disconnected: it is no longer a member"`
	out(cut, 5*time.Second) // 3 from the members' knowledge on
	restart()
	ok(t, u.a.WaitReserved(within(t, time.Minute)))
	banned("")
	ok(t, u.b.WaitReserved(within(t, time.Minute)))
	_, err := u.c.Kubectl("delete", "node", u.b.Name)
	ok(t, err)
	out(cut, time.Minute)
}

// signer waits for the controllers' key, which relays pin.
func (u *upgraded) signer(t *testing.T) (key string) {
	t.Helper()
	ok(t, lab.Until(within(t, time.Minute), 100*time.Millisecond, func() (err error) {
		key, err = u.c.Kubectl("get", "podnetwork", "cluster", "-o", "jsonpath={.status.signer}")
		if err == nil && key == "" {
			err = errors.New("no signer in the PodNetwork's status")
		}
		return err
	}))
	return strings.TrimSpace(key)
}

// TestRelaysAndAgentsOfTwoReleases: agents and relays of 0.2.0 and of today, exchanged one by one
// in either order, from the membership's file to the controllers' key: no member is without a relay
// at any time, and a relay that has nothing but the key serves an agent of 0.2.0, which shows no
// statement, once a member has passed that on.
func TestRelaysAndAgentsOfTwoReleases(t *testing.T) {
	tier.Long(t)
	for name, relaysFirst := range map[string]bool{"relays first": true, "agents first": false} {
		t.Run(name, func(t *testing.T) {
			h := formerChart(t, release020)
			old := h.programs
			h.spare = []string{"relay-2"}
			u := newUpgraded(t, h, "")
			listed, bare := u.lab.Relays[0], u.lab.Relays[1]
			both := func(when string) {
				t.Helper()
				for _, r := range u.lab.Relays {
					if err := r.WaitReservations(within(t, 3*time.Minute), 2); err != nil {
						t.Fatalf("%s: %s: %v", when, r.Name, err)
					}
				}
				curlPods(t, u.podA, u.podB, 20*time.Second)
			}
			exchange := func(r *lab.Relay, programs string, between func()) {
				t.Helper()
				ok(t, r.Process.Stop())
				between()
				r.Programs = programs
				ok(t, r.Start())
				ok(t, r.WaitUp(within(t, 10*time.Second)))
			}
			pin := func(r *lab.Relay) {
				r.Signers = []string{u.signer(t)}
				ok(t, os.Remove(r.Membership))
			}
			nothing := func() {}
			for _, r := range u.lab.Relays {
				exchange(r, old, nothing)
				both("agents of 0.2.0, " + r.Name + " of 0.2.0")
			}
			relays := func() {
				end := u.served(t, u.a, u.b)
				exchange(listed, "", nothing)
				both("a relay with a list exchanged")
				exchange(listed, "", func() { pin(listed) })
				both("it pins the key, and knows whom it served")
				exchange(bare, "", func() {
					pin(bare)
					ok(t, os.Remove(filepath.Join(bare.StateDir, "membership.json"))) // whom it served
				})
				end()
			}
			end := u.served(t, u.a, u.b)
			u.dir = ""
			if out, err := u.try(); err != nil {
				t.Fatalf("helm: %v\n%s", err, out)
			}
			u.today()
			end()
			if relaysFirst {
				relays()
				refuses(t, bare, "no_statement")
			}
			for _, x := range [][2]*lab.Node{{u.a, u.b}, {u.b, u.a}} {
				end := u.served(t, x[1])
				u.exchange(t, x[0])
				both(x[0].Name + " exchanged")
				end()
			}
			if !relaysFirst {
				relays()
				both("relays exchanged")
			}
			for proto, g := range u.end(t) {
				if g.Sent == 0 || g.FairMs > 1000 || proto == "tcp" && g.Lost > 0 { // as in TestUpgradeTells
					t.Errorf("%s: %d of %d lost, a gap of %.0f ms", proto, g.Lost, g.Sent, g.FairMs)
				}
			}
		})
	}
}

// refuses waits until a relay has refused a peer since its start for that reason.
func refuses(t *testing.T, r *lab.Relay, reason string) {
	t.Helper()
	ok(t, lab.Until(within(t, 2*time.Minute), 100*time.Millisecond, func() error {
		out, err := r.Run(t.Context(), "curl", "-fsS", "-m", "2", "http://127.0.0.1:9470/metrics")
		if err == nil && !strings.Contains(out, `edgemesh_relay_refused_total{reason="`+reason+`"}`) {
			err = fmt.Errorf("%s has refused nobody as %s", r.Name, reason)
		}
		return err
	}))
}

// served looks five times a second whether these nodes have a reservation, until its end is called.
func (u *upgraded) served(t *testing.T, nodes ...*lab.Node) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	looks, without := 0, []string(nil)
	go func() {
		defer close(done)
		for tick := time.NewTicker(200 * time.Millisecond); ; {
			for _, n := range nodes {
				st, err := n.Status(ctx)
				if looks++; err == nil && !slices.ContainsFunc(st.Relays, func(r lab.RelayStatus) bool { return r.Reserved }) {
					without = append(without, time.Now().Format("15:04:05.000 ")+n.Name)
				}
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}()
	return func() {
		t.Helper()
		cancel()
		<-done
		if looks == 0 || len(without) > 0 {
			t.Errorf("without a relay in %d of %d looks: %q", len(without), looks, without)
		}
	}
}

// TestRelayAlone: 60 days without API, controller and any member's change, its clock in 1970 after
// a restart in the middle: a relay that pins a key serves its members and refuses whom it was told
// to.
func TestRelayAlone(t *testing.T) {
	tier.Long(t) // the relay is compiled with a standard library of its own
	beside(t)
	l := newLab(t)
	r := relay(t, l, "relay")
	one, two, banned := cloud(t, l, "edge-1", lab.NodeOptions{}), cloud(t, l, "edge-2", lab.NodeOptions{}), cloud(t, l, "edge-3", lab.NodeOptions{})
	operator := newSigner(t, one, "operator.key")
	ok(t, l.WriteMembership())
	operator.signs(t, one.Membership, "sign")
	statements, err := os.ReadFile(one.Membership + ".signed")
	ok(t, err)
	for _, n := range l.Nodes() {
		n.Config.Signers = []string{operator.id}
		ok(t, os.WriteFile(n.Membership+".signed", statements, 0o644))
	}
	r.Signers = []string{operator.id}
	ok(t, os.Remove(r.Membership))
	clock, err := r.OwnClock()
	ok(t, err)
	ok(t, r.Start())
	for _, n := range l.Nodes() {
		ok(t, n.Start())
	}
	ready(t, l.Nodes()...)
	ok(t, r.WaitReservations(within(t, 20*time.Second), 3))
	operator.signs(t, one.Membership, "ban", banned.Name)
	serves := func(when string) {
		t.Helper()
		for _, n := range []*lab.Node{one, two} {
			if err := n.WaitReserved(within(t, time.Minute)); err != nil {
				t.Fatalf("%s: %v", when, err)
			}
		}
		if err := r.WaitReservations(within(t, 20*time.Second), 2); err != nil {
			t.Fatalf("%s: %v", when, err)
		}
	}
	serves("the ban has come")
	const month = 30 * 24 * time.Hour
	in1970 := time.Until(time.Date(1970, 1, 1, 0, 0, 20, 0, time.UTC))
	ok(t, clock.Set(month))
	restart := func() {
		t.Helper()
		ok(t, r.Process.Stop())
		ok(t, r.Start())
		ok(t, r.WaitUp(within(t, 10*time.Second)))
	}
	serves("after a month")
	ok(t, clock.Set(in1970))
	restart()
	serves("in 1970")
	refuses(t, r, "banned")
	ok(t, clock.Set(in1970+month))
	serves("another month later")
	ok(t, clock.Set(2*month))
	restart()
	serves("after 60 days")
	refuses(t, r, "banned")
}
