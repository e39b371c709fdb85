package enforce

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"edgemesh/agent/findings"
	"edgemesh/agent/host/nft"
	policy "edgemesh/agent/policy/compile"
	"edgemesh/internal/cni/conf"
)

// fake is a kernel that refuses what err says.
type fake struct {
	sync.Mutex
	err      error
	missing  string
	placed   policy.Placed
	stands   bool
	cuts     int
	cutting  error
	cutTakes time.Duration
	gone     bool
	counts   nft.PolicyCounts
	counted  int
}

func (f *fake) Enforce(place func() (policy.Placed, error)) error {
	p, err := place()
	f.Lock()
	defer f.Unlock()
	if err = errors.Join(err, f.err); err == nil {
		f.placed, f.stands, f.gone = p, len(p.Namespaces) > 0, false
	}
	return err
}
func (f *fake) Cut() error {
	f.Lock()
	f.cuts++
	takes, err := f.cutTakes, f.cutting
	f.Unlock()
	time.Sleep(takes) // sleep: in a bubble
	return err
}
func (f *fake) Standing() bool  { f.Lock(); defer f.Unlock(); return f.stands }
func (f *fake) Missing() string { return f.missing }
func (f *fake) Partly() string  { return "" }

func (f *fake) Gone() bool { return f.gone }
func (f *fake) Counts(bool) (nft.PolicyCounts, error) {
	f.Lock()
	defer f.Unlock()
	f.counted++
	return nft.PolicyCounts{Total: f.counts.Total, Flows: maps.Clone(f.counts.Flows)}, nil
}

func owner(t *testing.T, f *fake, stateDir string) (*Owner, Config) {
	t.Helper()
	c := Config{StateDir: stateDir, RuntimeDir: t.TempDir(), DataDir: t.TempDir(), Kernel: f, Ports: func() ([]netip.Addr, error) { return nil, nil }, Warn: func(string, string) {}, Log: slog.New(slog.DiscardHandler)}
	record := `{"ip":"10.1.1.2","network":"edgemesh","containerID":"c","ifName":"eth0","namespace":"shop","pod":"web-0","allocated":"2026-01-02T03:04:05Z"}`
	if err := os.WriteFile(filepath.Join(c.DataDir, "10.1.1.2_shop_web-0"), []byte(record), 0o600); err != nil {
		t.Fatal(err)
	}
	return New(c), c
}

// closing is what the plugin reads.
func closing(t *testing.T, c Config) conf.Policies {
	t.Helper()
	p, err := conf.LoadPolicies(c.RuntimeDir)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

var shop = policy.Rules{
	Pods:       map[string][2]string{"shop/web-0": {"one", ""}},
	Namespaces: map[string][2]bool{"shop": {true, false}},
	Chains:     map[string]policy.Chain{"one": {Policies: []string{"shop/p"}}},
	Sets:       map[string][]policy.Member{},
}

// TestOffline: what was in force is in force again before the plugin may make pods, without any source; and a source that fails leaves
// it.
func TestOffline(t *testing.T) {
	state := t.TempDir()
	o, _ := owner(t, &fake{}, state)
	o.Set(Given{From: "a test", Rules: shop})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	o.Run(ctx) // saves at its end

	f := &fake{}
	again, c := owner(t, f, state)
	again.Set(Given{From: "a test", Err: errors.New("no answer")})
	if err := again.Apply(); err != nil {
		t.Fatal(err)
	}
	for _, a := range []string{"10.1.1.2", "fe80::858:aff:fe01:102"} { // its link-local address, too
		if place := f.placed.At[netip.MustParseAddr(a)]; place != (policy.Place{Pod: "shop/web-0", Chains: [2]string{"one", ""}}) {
			t.Errorf("placed %+v", f.placed)
		}
	}
	if got := closing(t, c).Namespaces; !reflect.DeepEqual(got, map[string][]string{"shop": {"Ingress"}}) {
		t.Errorf("the plugin closes %v", got)
	}
	if got := again.InForce(); got.Problem == nil || len(got.At) != 2 {
		t.Errorf("in force: %+v", got)
	}
	again.Set(Given{From: "a test"})
	if _, err := os.Stat(filepath.Join(c.RuntimeDir, conf.PoliciesFile)); err == nil || again.InForce().Problem != nil {
		t.Error("policies that are gone still close new pods")
	}
}

// TestRefusedByTheKernel: former rules stay, and where there are none, new pods of namespaces with policies get no network.
func TestRefusedByTheKernel(t *testing.T) {
	f := &fake{err: errors.New("shop/p: refused")}
	o, c := owner(t, f, t.TempDir())
	o.Set(Given{Rules: shop})
	if got := closing(t, c); !strings.Contains(got.Refused, "shop/p") || o.InForce().Failure == nil {
		t.Errorf("%+v, %v", got, o.InForce().Failure)
	}
	if found := o.Findings(); len(found) != 1 || found[0].ID != "network-policy" || found[0].Severity != findings.Broken || !strings.Contains(found[0].Text, "shop/p") {
		t.Errorf("found %+v", found)
	}
	f.stands = true
	if err := o.Apply(); err != nil || closing(t, c).Refused != "" {
		t.Errorf("with former rules: %v, %+v", err, closing(t, c))
	}
	f.err, f.missing, f.stands = nil, "no nf_tables", false
	if err := o.Apply(); err != nil || closing(t, c).Refused != "no nf_tables" {
		t.Errorf("without nf_tables: %v, %+v", err, closing(t, c))
	}
	o.SetOff(true)
	if got := closing(t, c); len(got.Namespaces) > 0 || len(o.Findings()) > 0 {
		t.Errorf("off, and still closes %+v", got)
	}
}

// TestUnknown: where the saved rules are missing or unreadable, what the kernel and the plugin have stays until a source has spoken.
func TestUnknown(t *testing.T) {
	for name, saved := range map[string]string{"missing": "", "cut off": `{"namespaces":{"sh`, "of another form": `{"namespaces":{"other":[true,false]},"pods":7}`} {
		t.Run(name, func(t *testing.T) {
			state := t.TempDir()
			if err := os.WriteFile(filepath.Join(state, File), []byte(saved), 0o600); err != nil {
				t.Fatal(err)
			}
			if saved == "" {
				_ = os.Remove(filepath.Join(state, File))
			}
			f := &fake{stands: true}
			_, c := owner(t, f, state)
			if err := os.WriteFile(filepath.Join(c.RuntimeDir, conf.PoliciesFile), []byte(`{"namespaces":{"shop":["Egress"]}}`), 0o600); err != nil {
				t.Fatal(err)
			}
			o := New(c)
			if err := errors.Join(o.Apply(), o.Apply()); err != nil {
				t.Fatal(err)
			}
			o.Set(Given{From: "a test", Err: errors.New("no answer")})
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			o.Run(ctx)
			if got := closing(t, c).Namespaces; !f.stands || !reflect.DeepEqual(got, map[string][]string{"shop": {"Egress"}}) || o.InForce().Problem == nil {
				t.Errorf("rules stand: %v; the plugin closes %v; problem: %v", f.stands, got, o.InForce().Problem)
			}
			if got := o.Given().Namespaces; !reflect.DeepEqual(got, map[string][2]bool{"shop": {false, true}}) {
				t.Errorf("namespaces with policies: %v", got)
			}
			if b, _ := os.ReadFile(filepath.Join(state, File)); string(b) != saved {
				t.Errorf("saved: %s", b)
			}
			o.Set(Given{From: "a test"})
			if f.stands || len(closing(t, c).Namespaces) > 0 || o.InForce().Problem != nil {
				t.Errorf("after the source: rules stand: %v; the plugin closes %v", f.stands, closing(t, c).Namespaces)
			}
		})
	}
}

// TestSavedClusterPolicies: pods that only ClusterNetworkPolicies concerned are open after the upgrade, also without the API.
func TestSavedClusterPolicies(t *testing.T) {
	state, f := t.TempDir(), &fake{}
	const saved = `{"pods":{"shop/web-0":["cluster","both"]},"namespaces":{"*":[true,true]},"chains":{"cluster":{"policies":null,"cluster":["ClusterNetworkPolicy/c"],"admin":[{"action":"Deny","any":true}]},
		"both":{"policies":["shop/p"],"cluster":["ClusterNetworkPolicy/c"]}},"sets":{}}`
	if err := os.WriteFile(filepath.Join(state, File), []byte(saved), 0o600); err != nil {
		t.Fatal(err)
	}
	o, _ := owner(t, f, state)
	if err := o.Apply(); err != nil {
		t.Fatal(err)
	}
	if place := f.placed.At[netip.MustParseAddr("10.1.1.2")]; place.Chains != [2]string{"", "both"} {
		t.Errorf("placed %+v", f.placed)
	}
}

// TestUnreadAfterBoot: where the saved rules are there and cannot be read, and no agent has run since the host was started, all pods are closed until a
// source has spoken, and a finding names the file; where there are none, or an agent ran without rules, nothing is closed.
func TestUnreadAfterBoot(t *testing.T) {
	for name, x := range map[string]struct {
		saved  func(path string) error
		ran    bool
		closes bool
	}{
		"cut off":       {func(path string) error { return os.WriteFile(path, []byte(`{"namespaces":{"sh`), 0o600) }, false, true},
		"empty":         {func(path string) error { return os.WriteFile(path, nil, 0o600) }, false, true},
		"not readable":  {func(path string) error { return os.Mkdir(path, 0o700) }, false, true},
		"ran before":    {func(path string) error { return os.WriteFile(path, nil, 0o600) }, true, false},
		"a fresh node":  {func(string) error { return nil }, false, false},
		"no policy yet": {func(path string) error { return os.WriteFile(path, []byte("{}"), 0o600) }, false, false},
	} {
		f := &fake{}
		_, c := owner(t, f, t.TempDir())
		path := filepath.Join(c.StateDir, File)
		err := x.saved(path)
		if x.ran {
			err = errors.Join(err, os.WriteFile(filepath.Join(c.RuntimeDir, conf.SubnetFile), nil, 0o600))
		}
		o := New(c)
		o.Set(Given{From: "a test", Err: errors.New("no answer")})
		if err := errors.Join(err, o.Apply()); err != nil {
			t.Fatal(err)
		}
		want := []string{}
		if x.closes {
			want = []string{"Egress", "Ingress"}
		}
		place := f.placed.At[netip.MustParseAddr("10.1.1.2")]
		if got := closing(t, c).Closed("any"); !slices.Equal(got, want) || (place.Chains == [2]string{policy.Closed, policy.Closed}) != x.closes {
			t.Errorf("%s: the plugin closes %v; placed %v", name, got, place)
		}
		says := func() bool {
			return slices.ContainsFunc(o.Findings(), func(f findings.Finding) bool { return f.Severity == findings.Broken && strings.Contains(f.Text, path) })
		}
		if says() != x.closes {
			t.Errorf("%s: found %+v", name, o.Findings())
		}
		if x.closes {
			if o.Set(Given{Closes: true, Rules: policy.Rules{Namespaces: map[string][2]bool{policy.EveryNamespace: {true, true}, "shop": {true, true}}}}); !says() {
				t.Errorf("%s: what no source has said ends the finding", name)
			}
		}
		if o.Set(Given{From: "a test"}); says() || len(closing(t, c).Namespaces) > 0 {
			t.Errorf("%s, after the source: found %+v; the plugin closes %v", name, o.Findings(), closing(t, c))
		}
	}
}

// TestSavedAgain: rules that could not be saved are a finding, and are saved as soon as that succeeds.
func TestSavedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, c := owner(t, &fake{}, t.TempDir())
		path := filepath.Join(c.StateDir, File)
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { o.keep(ctx); close(done) }()
		o.Set(Given{Rules: shop})
		time.Sleep(time.Minute)
		if found := o.Findings(); len(found) != 1 || !strings.Contains(found[0].Text, "could not be saved") {
			t.Errorf("found %+v", found)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if again := New(c); !reflect.DeepEqual(again.given.Rules, shop) || len(o.Findings()) > 0 {
			t.Errorf("saved: %+v; found %+v", again.given.Rules, o.Findings())
		}
		cancel()
		<-done
	})
}

// TestSavedImmediately: a policy comes into force in steps, and the power may fail right after the last one; many changes wait.
func TestSavedImmediately(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, c := owner(t, &fake{}, t.TempDir())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { o.keep(ctx); close(done) }()
		saved := 0
		for i := range 20 {
			rules := policy.Rules{Namespaces: map[string][2]bool{fmt.Sprint("n", i): {true}}}
			o.Set(Given{Rules: rules})
			synctest.Wait()
			if reflect.DeepEqual(New(c).given.Rules, rules) {
				saved++
			}
		}
		if saved != 1+saveBurst {
			t.Errorf("%d of 20 changes were saved immediately, want %d", saved, 1+saveBurst)
		}
		time.Sleep(2 * saveRest)
		if _, last := New(c).given.Rules.Namespaces["n19"]; !last {
			t.Error("the last one is not saved")
		}
		cancel()
		<-done
	})
}

// TestCut: looks at connections that cost something pause for a second, however often rules change; one that costs nothing delays the next
// by little; and it is looked again after an error.
func TestCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		o, _ := owner(t, f, t.TempDir())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { o.cutLost(ctx); close(done) }()
		cuts := func() int { f.Lock(); defer f.Unlock(); return f.cuts }
		set := func(takes time.Duration, err error) {
			f.Lock()
			defer f.Unlock()
			f.cuts, f.cutTakes, f.cutting = 0, takes, err
		}
		o.Set(Given{Rules: shop})
		for want := range 2 {
			if synctest.Wait(); cuts() != want+1 {
				t.Errorf("%d looks, not %d", cuts(), want+1)
			}
			time.Sleep(2 * cutSoon)
			_ = o.Apply()
		}
		synctest.Wait()
		set(60*time.Millisecond, nil)
		for range 100 {
			if err := o.Apply(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(50 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		if n := cuts(); n < 5 || n > 7 {
			t.Errorf("%d looks in 5 s", n)
		}
		set(60*time.Millisecond, errors.New("interrupted"))
		_ = o.Apply()
		time.Sleep(time.Minute)
		if n := cuts(); n < 2 || n > 7 {
			t.Errorf("%d looks in a minute of errors", n)
		}
		set(60*time.Millisecond, nil)
		time.Sleep(time.Minute)
		before := cuts()
		time.Sleep(time.Minute)
		if cuts() != before {
			t.Error("without an error it is looked again")
		}
		cancel()
		<-done
	})
}

// TestClosedLong: a pod that stays closed because no source names it is a finding after a minute, until it is judged.
func TestClosedLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, _ := owner(t, &fake{}, t.TempDir())
		unnamed := shop
		unnamed.Pods = nil
		o.Set(Given{Rules: unnamed})
		time.Sleep(50 * time.Second)
		if err := o.Apply(); err != nil || len(o.Findings()) > 0 {
			t.Errorf("within a minute: %v, %+v", err, o.Findings())
		}
		time.Sleep(20 * time.Second)
		if found := o.Findings(); len(found) != 1 || !strings.Contains(found[0].Text, "shop/web-0") {
			t.Errorf("after a minute: %+v", found)
		}
		o.Set(Given{Rules: shop})
		if found := o.Findings(); len(found) > 0 {
			t.Errorf("after it is judged: %+v", found)
		}
	})
}

// TestDropsAreShown: the first drop by a pod and a policy is an Event, and further ones none within an hour; doctor names the policy at
// both ends; without rules nothing is looked at.
func TestDropsAreShown(t *testing.T) {
	state := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		o, _ := owner(t, f, state)
		var events []string
		o.c.Warn = func(reason, message string) { events = append(events, reason+": "+message) }
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); o.logDrops(ctx) }()
		defer func() { cancel(); <-ended }()
		time.Sleep(time.Hour)
		if synctest.Wait(); f.counted > 0 {
			t.Errorf("%d looks at drops without a policy", f.counted)
		}
		rules := shop
		rules.Pods = map[string][2]string{"shop/web-0": {"one", "one"}}
		o.Set(Given{Rules: rules})
		time.Sleep(time.Second) // not at the moment of a look
		drop := func(src, dst string) {
			f.Lock()
			f.counts.Total[0]++
			f.counts.Flows = map[policy.Packet]uint64{{Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr(dst), Protocol: 6, Port: 80}: 1}
			f.Unlock()
			time.Sleep(2 * dropsEvery)
			synctest.Wait() // events are read
		}
		drop("10.2.0.1", "10.1.1.2")
		if want := "MeshPolicyDropped: ingress of pod shop/web-0 is dropped by NetworkPolicy shop/p"; len(events) != 1 || !strings.HasPrefix(events[0], want) || !strings.Contains(events[0], "10.2.0.1 to 10.1.1.2, TCP port 80") {
			t.Errorf("events %q", events)
		}
		drop("10.2.0.2", "10.1.1.2")
		if len(events) != 1 {
			t.Errorf("another flow to the pod by the same policies: %q", events)
		}
		drop("10.1.1.2", "10.2.0.9")
		if len(events) != 2 || !strings.Contains(events[1], "egress of pod shop/web-0") {
			t.Errorf("the other direction: %q", events)
		}
		for to, what := range map[string]string{"10.1.1.2": "ingress is isolated by shop/p and egress is isolated by shop/p", "10.2.0.9": "no NetworkPolicy of this node applies"} {
			if got := o.Explain(netip.Addr{}, netip.MustParseAddr(to)).Text; !strings.Contains(got, what) || !strings.Contains(got, "10.1.1.2 to 10.2.0.9, TCP port 80, egress of shop/web-0 by shop/p") {
				t.Errorf("doctor %s: %s", to, got)
			}
		}
		f.Lock()
		f.counts.Flows[policy.Packet{Src: netip.MustParseAddr("10.2.0.9"), Dst: netip.MustParseAddr("10.1.1.2"), Protocol: 6, Port: 80}] = 9
		f.Unlock()
		if got := o.Explain(netip.Addr{}, netip.MustParseAddr("10.2.0.9")).Text; !strings.Contains(got, "10.1.1.2 to 10.2.0.9") {
			t.Errorf("doctor names what comes from there, and not what is sent there: %s", got)
		}
		time.Sleep(dropStays)
		if drop("10.2.0.1", "10.1.1.2"); len(events) != 3 {
			t.Errorf("after an hour: %q", events)
		}
	})
}

// TestStand: rules that another program has deleted are back immediately, not with the next repair.
func TestStand(t *testing.T) {
	f := &fake{}
	o, _ := owner(t, f, t.TempDir())
	o.Set(Given{Rules: shop})
	f.placed = policy.Placed{}
	if o.Stand(); len(f.placed.At) > 0 {
		t.Error("rules that stand are applied again")
	}
	f.gone = true
	if o.Stand(); len(f.placed.At) == 0 || f.gone {
		t.Error("rules that another program has deleted are not put back")
	}
}

// TestPortOfNobody: a port by name that nobody has is shown with the pods of its policy, and is one finding for all.
func TestPortOfNobody(t *testing.T) {
	o, _ := owner(t, &fake{}, t.TempDir())
	lacks := func(ports ...string) (out []policy.Lack) {
		for _, x := range ports {
			out = append(out, policy.Lack{Policy: "shop/p", Port: x}, policy.Lack{Policy: "shop/other", Direction: policy.Egress, Port: x})
		}
		return out
	}
	rules := policy.Rules{
		Pods:       map[string][2]string{"shop/web-0": {"one", ""}},
		Namespaces: shop.Namespaces,
		Chains:     map[string]policy.Chain{"one": {Policies: []string{"shop/p"}}},
		Lacks:      lacks("sql (TCP)", "http"),
	}
	o.Set(Given{Rules: rules})
	if got := o.Status("shop/web-0").Pods; len(got) != 1 || !slices.Equal(got[0].Ingress.NoPort, []string{"shop/p: http", "shop/p: sql (TCP)"}) {
		t.Errorf("%+v", got)
	}
	rules.Lacks = lacks("a", "b", "c", "d")
	if o.Set(Given{Rules: rules}); len(o.Findings()) != 1 || o.Findings()[0].Severity != findings.Note ||
		!strings.HasSuffix(o.Findings()[0].Text, "match nothing: shop/other: a in egress, shop/other: b in egress, shop/other: c in egress, shop/other: d in egress, shop/p: a in ingress and 3 more") {
		t.Errorf("found %+v", o.Findings())
	}
}

// TestPodsWithoutARecord: a pod that the plugin made with another directory of records is closed where there are policies, and named.
func TestPodsWithoutARecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		o, _ := owner(t, f, t.TempDir())
		known, stray := netip.MustParseAddr("10.1.1.2"), netip.MustParseAddr("10.1.1.9")
		o.c.Ports = func() ([]netip.Addr, error) { return []netip.Addr{stray}, nil }
		o.Set(Given{From: "a test", Rules: shop})
		if err := o.Apply(); err != nil {
			t.Fatal(err)
		}
		for _, a := range []netip.Addr{stray, conf.LinkLocal(conf.PodMAC(stray))} {
			if got := f.placed.At[a].Chains; got != [2]string{policy.Closed, policy.Closed} {
				t.Errorf("%s: %v", a, got)
			}
		}
		named := func() bool {
			return slices.ContainsFunc(o.Findings(), func(f findings.Finding) bool {
				return f.Severity == findings.Broken && strings.Contains(f.Text, "10.1.1.9") && !strings.Contains(f.Text, "10.1.1.2") && strings.Contains(f.Remedy, "cniDataDir")
			})
		}
		if named() {
			t.Error("named immediately: one that is being deleted has no record for an instant")
		}
		if time.Sleep(strayLong); !named() {
			t.Errorf("not named: %v", o.Findings())
		}
		// A record of another one explains nothing of it.
		o.c.Ports = func() ([]netip.Addr, error) { return []netip.Addr{known, stray}, nil }
		if err := o.Apply(); err != nil {
			t.Fatal(err)
		}
		if got := f.placed.At[known].Pod; !named() || got != "shop/web-0" || f.placed.At[stray].Chains != [2]string{policy.Closed, policy.Closed} {
			t.Errorf("beside a known pod: named %v, %s is %q, %+v", named(), known, got, f.placed.At[stray])
		}
		var shut bool
		o.c.Others = func(s bool) ([]string, error) { shut = s; return []string{"veth-of-another"}, nil }
		if err := o.Apply(); err != nil || !shut {
			t.Errorf("a port of nobody: %v, shut: %v", err, shut)
		}
		if !slices.ContainsFunc(o.Findings(), func(f findings.Finding) bool {
			return strings.Contains(f.Text, "they are closed") && strings.Contains(f.Text, "veth-of-another")
		}) {
			t.Errorf("a port of nobody is not named: %v", o.Findings())
		}
	})
}
