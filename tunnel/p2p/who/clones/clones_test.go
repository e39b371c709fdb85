package clones

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/keytest"
)

// TestKeeps is the decision: of two places exactly one keeps the traffic, and which one does not depend on who is asked.
func TestKeeps(t *testing.T) {
	for _, tc := range []struct {
		name string
		a, b Statement
		want bool // a keeps
	}{
		{"hardware, though younger", Statement{Matches: true, Known: time.Second}, Statement{Known: 24 * time.Hour}, true},
		{"hardware, though it stands by", Statement{Matches: true}, Statement{Known: 24 * time.Hour}, true},
		{"neither matches: known first", Statement{Known: time.Hour}, Statement{Known: time.Minute}, true},
		{"both match: known first", Statement{Matches: true, Known: time.Minute}, Statement{Matches: true, Known: time.Hour}, false},
		{"restarted a moment ago, the other stands by", Statement{Known: 1}, Statement{}, true},
		{"after a night without power", Statement{Known: 1}, Statement{Second: true, Known: 12 * time.Hour}, true},
		{"after a night without power, both match", Statement{Matches: true, Known: 1}, Statement{Matches: true, Second: true, Known: 12 * time.Hour}, true},
		{"hardware, though it stood by before", Statement{Matches: true, Second: true}, Statement{Known: time.Hour}, true},
		{"both stood by before: known first", Statement{Second: true, Known: time.Hour}, Statement{Second: true, Known: time.Minute}, true},
		{"at the same time: the number", Statement{Known: time.Second}, Statement{Known: time.Second + closeBy/2}, true},
		{"both stand by: the number", Statement{}, Statement{}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.a.Instance, tc.b.Instance = "1", "2"
			if tc.a.Keeps(tc.b) != tc.want || tc.b.Keeps(tc.a) == tc.want {
				t.Errorf("a keeps: %v, b keeps: %v; want %v and the opposite", tc.a.Keeps(tc.b), tc.b.Keeps(tc.a), tc.want)
			}
		})
	}
}

// witnessed has a place take part in an exchange whose witness is lie: it gets the place's hello and returns the offer, and gets
// the statement and returns what it passes on.
func witnessed(t *testing.T, p *Place, meet func(hello) offer, pass func(signed) signed) error {
	t.Helper()
	here, there := net.Pipe()
	defer here.Close()
	done := make(chan error, 1)
	go func() {
		defer there.Close()
		_, err := p.exchange(there)
		done <- err
	}()
	in, out := json.NewDecoder(here), json.NewEncoder(here)
	var h hello
	if err := in.Decode(&h); err != nil {
		t.Fatal(err)
	}
	_ = out.Encode(meet(h))
	var s signed
	if in.Decode(&s) == nil {
		_ = out.Encode(pass(s))
	}
	return <-done
}

func testPlace(t *testing.T) *Place {
	t.Helper()
	key, _ := keytest.New(t)
	return &Place{Key: key, Instance: NewInstance(), Known: func() (time.Duration, bool) { return time.Minute, false }, Log: slog.New(slog.DiscardHandler)}
}

// TestOnlyTheKeyProves: nobody without the key is a node's second place, whatever it has heard before.
func TestOnlyTheKeyProves(t *testing.T) {
	p := testPlace(t)
	clone := hello{NewInstance(), random(16)}
	state := func(key *Place, by, to hello) signed {
		s, err := Statement{hello: by, Other: to}.sign(key.Key)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	meetClone := func(hello) offer { return offer{hello: clone} }
	var mine hello
	remember := func(h hello) offer { mine = h; return meetClone(h) }
	for name, tc := range map[string]struct {
		meet  func(hello) offer
		pass  func(signed) signed
		holds bool
	}{
		"the clone":           {remember, func(signed) signed { return state(p, clone, mine) }, true},
		"its own statement":   {meetClone, func(s signed) signed { return s }, false},
		"itself":              {func(h hello) offer { return offer{hello: h} }, func(s signed) signed { return s }, false},
		"another key":         {remember, func(signed) signed { return state(testPlace(t), clone, mine) }, false},
		"an older statement":  {remember, func(signed) signed { return state(p, clone, hello{mine.Instance, random(16)}) }, false},
		"of another exchange": {remember, func(signed) signed { return state(p, hello{clone.Instance, random(16)}, mine) }, false},
		"changed": {remember, func(signed) signed {
			s := state(p, clone, mine)
			s.Body = []byte(strings.Replace(string(s.Body), `"matches":false`, `"matches":true`, 1))
			return s
		}, false},
		"no number": {func(h hello) offer { mine = h; return offer{} }, func(signed) signed { return state(p, hello{}, mine) }, false},
	} {
		if err := witnessed(t, p, tc.meet, tc.pass); (err == nil) != tc.holds {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestBudget: one witness cannot have a node sign without end, nor use up another's.
func TestBudget(t *testing.T) {
	p := testPlace(t)
	for range statements {
		if !p.take("a") {
			t.Fatal("refused within the budget")
		}
	}
	if p.take("a") || !p.take("b") {
		t.Error("a witness has more than its budget, or another one's")
	}
}

func TestAgent(t *testing.T) {
	if got := instanceOf(Agent("edgemesh-agent", "ab12")); got != "ab12" {
		t.Errorf("instance %q", got)
	}
	if got := instanceOf("edgemesh-agent"); got != "" {
		t.Errorf("an older peer has the instance %q", got)
	}
}

// machine writes what a host says of its hardware.
func machine(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, "sys", name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text+"\n"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func hardware(uuid, mac, disk string) map[string]string {
	return map[string]string{
		"class/dmi/id/product_uuid": uuid, "class/dmi/id/product_serial": "Default string",
		"class/net/eth0/address": mac, "class/net/eth0/addr_assign_type": "0", "class/net/eth0/device/vendor": "0x10ec",
		"class/net/docker0/address": "02:42:00:00:00:01", "class/net/docker0/addr_assign_type": "0",
		"class/net/usb0/address": "02:11:22:33:44:55", "class/net/usb0/addr_assign_type": "1", "class/net/usb0/device/vendor": "x",
		"block/sda/device/wwid": disk,
	}
}

// TestHardware is the rule of the fingerprint: what is the machine on which a key was made.
func TestHardware(t *testing.T) {
	const filler = "03000200-0400-0500-0006-000700080009"
	was := hardware("uuid-1", "aa:00:00:00:00:01", "disk-1")
	pi := map[string]string{"firmware/devicetree/base/serial-number": "10000000abc\x00", "block/mmcblk0/device/cid": "card-1"}
	for _, tc := range []struct {
		name     string
		was, now map[string]string
		want     bool
	}{
		{"the same", was, was, true},
		{"another network card", was, hardware("uuid-1", "aa:00:00:00:00:02", "disk-1"), true},
		{"another disk", was, hardware("uuid-1", "aa:00:00:00:00:01", "disk-2"), true},
		{"a cloned VM", was, hardware("uuid-2", "aa:00:00:00:00:02", "disk-1"), false},
		{"a disk in another machine", was, hardware("uuid-2", "aa:00:00:00:00:02", "disk-1"), false},
		{"a copied disk", was, hardware("uuid-2", "aa:00:00:00:00:02", "disk-2"), false},
		{"nothing can be read", was, nil, false},
		{"a board without a number", hardware(filler, "aa:00:00:00:00:01", "disk-1"), hardware(filler, "aa:00:00:00:00:02", "disk-2"), false},
		{"a Pi with a copied card", pi, map[string]string{"firmware/devicetree/base/serial-number": "10000000def\x00", "block/mmcblk0/device/cid": "card-2"}, false},
		{"a Pi with its card copied to a new one", pi, map[string]string{"firmware/devicetree/base/serial-number": "10000000abc\x00", "class/net/eth0/address": "aa:00:00:00:00:09",
			"class/net/eth0/addr_assign_type": "0", "class/net/eth0/device/x": ""}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := Hardware(machine(t, tc.was)).Matches(Hardware(machine(t, tc.now))); got != tc.want {
				t.Errorf("matches: %v", got)
			}
		})
	}
	if h := Hardware(machine(t, was)); len(h["nic"]) != 1 {
		t.Errorf("network cards: %v, want eth0 alone: the others' addresses are not their hardware's", h["nic"])
	}
}

// TestRemember: the fingerprint is written once, follows a machine part by part, and never a copy.
func TestRemember(t *testing.T) {
	dir := t.TempDir()
	_, id := keytest.New(t)
	step := func(name string, files map[string]string, want bool) {
		t.Helper()
		if got, err := Remember(dir, machine(t, files), id); got.Matches != want || got.Second || err != nil {
			t.Errorf("%s: %v, %v", name, got.Matches, err)
		}
	}
	if _, known := Compare(dir, "/", id); known {
		t.Error("a fingerprint without a file")
	}
	step("first start", hardware("uuid-1", "aa:00:00:00:00:01", "disk-1"), true)
	step("another network card", hardware("uuid-1", "aa:00:00:00:00:02", "disk-1"), true)
	step("then another disk", hardware("uuid-1", "aa:00:00:00:00:02", "disk-2"), true)
	step("then another board", hardware("uuid-2", "aa:00:00:00:00:02", "disk-2"), true)
	step("a copy", hardware("uuid-9", "aa:00:00:00:00:09", "disk-9"), false)
	step("the copy again", hardware("uuid-9", "aa:00:00:00:00:09", "disk-9"), false)
	step("the original", hardware("uuid-2", "aa:00:00:00:00:02", "disk-2"), true)
	info, err := os.Stat(filepath.Join(dir, HardwareFile))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v; want mode 0600", info, err)
	}
	for _, torn := range []string{"", `{"board":["`, "[]", "\x00\x00"} {
		if err := os.WriteFile(filepath.Join(dir, HardwareFile), []byte(torn), 0o600); err != nil {
			t.Fatal(err)
		}
		step(fmt.Sprintf("torn: %q", torn), hardware("uuid-3", "aa:00:00:00:00:03", "disk-3"), true)
	}
}

// TestOfAnotherKey: a fingerprint counts for its key alone, so a machine whose key was replaced or restored is no copy.
func TestOfAnotherKey(t *testing.T) {
	_, former := keytest.New(t)
	_, id := keytest.New(t)
	dir, here := t.TempDir(), machine(t, hardware("uuid-2", "aa:00:00:00:00:02", "disk-2"))
	if _, err := Remember(dir, machine(t, hardware("uuid-1", "aa:00:00:00:00:01", "disk-1")), former); err != nil {
		t.Fatal(err)
	}
	if matches, known := Compare(dir, here, id); matches || known {
		t.Errorf("before the first start: matches %v, known %v", matches, known)
	}
	if m, err := Remember(dir, here, id); err != nil || !m.Matches {
		t.Errorf("matches %v, %v", m.Matches, err)
	}
}

// TestSecond: a machine that stood by remembers it; a copy of what it has does not, and it ends with the key.
func TestSecond(t *testing.T) {
	mine, copied := machine(t, hardware("uuid-1", "aa:00:00:00:00:01", "disk-1")), machine(t, hardware("uuid-2", "aa:00:00:00:00:02", "disk-2"))
	_, id := keytest.New(t)
	_, other := keytest.New(t)
	for name, tc := range map[string]struct {
		made, here string // the first start, and the machine
		again      string // the next start's
		key        peer.ID
		want       bool
	}{
		"the same":                 {mine, mine, mine, id, true},
		"made elsewhere":           {copied, mine, mine, id, true},
		"a copy":                   {mine, mine, copied, id, false},
		"the original of the copy": {copied, mine, copied, id, false},
		"a new key":                {mine, mine, mine, other, false},
		"nothing to be read":       {machine(t, nil), machine(t, nil), machine(t, nil), id, true},
	} {
		dir := t.TempDir()
		start := func(root string, key peer.ID) Machine {
			m, err := Remember(dir, root, key)
			if err != nil {
				t.Fatal(err)
			}
			return m
		}
		start(tc.made, id)
		if m := start(tc.here, id); m.Second || m.Yielded() != nil {
			t.Errorf("%s: second from the start, or not written", name)
		}
		if m := start(tc.again, tc.key); m.Second != tc.want {
			t.Errorf("%s: second %v, want %v", name, m.Second, tc.want)
		}
		if was, now := tc.made == tc.again, start(tc.again, tc.key).Matches; tc.key == id && tc.made != tc.again && now != was {
			t.Errorf("%s: matches %v", name, now)
		}
	}
}
