package e2e

import (
	"errors"
	"fmt"
	"os"
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
	signer := ""
	ok(t, lab.Until(within(t, time.Minute), 100*time.Millisecond, func() (err error) {
		signer, err = u.c.Kubectl("get", "podnetwork", "cluster", "-o", "jsonpath={.status.signer}")
		if err == nil && signer == "" {
			err = errors.New("no signer in the PodNetwork's status")
		}
		return err
	}))
	r.Signers = []string{strings.TrimSpace(signer)}
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
