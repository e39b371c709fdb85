// Package enforce owns the NetworkPolicy rules that are in force on this node: in the kernel, on disk for an offline start, and in the
// file by which the CNI plugin closes new pods. agent/policy/compile decides what rules say.
//
//	owner.go  Owner: Set, Apply, what is in force
//	seen.go   what applies, and what is dropped: for operators
package enforce

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/time/rate"

	"edgemesh/agent/host/nft"
	policy "edgemesh/agent/policy/compile"
	"edgemesh/internal/cni/conf"
	"edgemesh/internal/cni/ipam"
	"edgemesh/internal/durable"
	"edgemesh/internal/wake"
)

// File is the copy in the state directory: the rules that an offline start brings into force.
const File = "policies.json"

// Given is what a source of policies says.
type Given struct {
	From  string       // the source, for people: a file's path, "the API", "the controller"
	Rules policy.Rules // complete: all policies of the cluster, as far as they concern this node's pods
	Err   error        // why there are no Rules now, or not all; what was in force stays

	Closes bool // no source has spoken: more is closed than before
}

// Kernel enforces rules.
type Kernel interface {
	// Enforce brings into force what place returns, or leaves the former rules. It calls place after it has read which pods
	// are closed: their records were written before.
	Enforce(place func() (policy.Placed, error)) error
	// Cut deletes connections that have lost their right by what Enforce brought into force.
	Cut() error
	// Standing reports whether rules are in force, so that new pods can be closed; Gone, whether another program has deleted them since.
	Standing() bool
	Gone() bool
	// Missing says why this kernel can hold no rules, "" if it can; Partly why it cannot hold all of them.
	Missing() string
	Partly() string
	// Counts reads what was passed and dropped; only totals unless all.
	Counts(all bool) (nft.PolicyCounts, error)
}

// Config is where an Owner keeps things.
type Config struct {
	StateDir   string
	RuntimeDir string // of the plugin's file
	DataDir    string // the plugin's records of addresses
	Kernel     Kernel
	Ports      func() ([]netip.Addr, error) // the addresses of pods on the bridge, whatever records say; nil: none
	// Others names the bridge's ports that belong to no pod and not to the agent, and shuts or opens them; nil: there are none.
	Others func(shut bool) ([]string, error)
	Warn   func(reason, message string) // records an Event about this node, where the cluster has Events
	Log    *slog.Logger
}

// Owner has the rules in force. Its methods may be called from several goroutines.
type Owner struct {
	c        Config
	save     wake.One
	cut      wake.One       // connections may have lost their right
	stands   wake.One       // rules may be in force
	applying sync.Mutex     // one Apply at a time; locked before mu
	plugin   *conf.Policies // as its file was written

	saves sync.Mutex // one write of the copy at a time; locked before mu

	mu      sync.Mutex // nothing else is locked while it is held
	off     bool
	given   Given // the last one without an error
	known   bool  // the saved rules could be read, or a source has spoken; until then the kernel and the plugin's file stay as they are
	problem error // of the source
	unread  error // of the saved rules, for which all pods are closed until a source has spoken
	failure error // of the kernel
	placed  policy.Placed
	closed  map[string]time.Time     // pods that no source has named yet, and since when
	strays  map[netip.Addr]time.Time // pods without a record, and since when
	others  []string                 // the bridge's ports that are nobody's here
	open    error                    // why some could not be shut
	unsaved bool
	saving  error // why they are
	changed []func()
}

// New returns an Owner with the rules that were in force last. It changes nothing yet.
func New(c Config) *Owner {
	o := &Owner{c: c, save: wake.NewOne(), cut: wake.NewOne(), stands: wake.NewOne()}
	path := filepath.Join(c.StateDir, File)
	var saved policy.Rules
	b, err := os.ReadFile(path)
	if err == nil {
		if err = json.Unmarshal(b, &saved); err != nil {
			err = fmt.Errorf("%s: %w", path, err)
		}
	}
	o.given.From = "the rules saved in " + c.StateDir
	stays, absent := isolating(c.RuntimeDir), errors.Is(err, fs.ErrNotExist)
	switch {
	case err == nil:
		for pod, chains := range saved.Pods {
			for d, name := range chains {
				if c, ok := saved.Chains[name]; ok && len(c.Policies) == 0 { // of ClusterNetworkPolicies alone, which no version enforces
					chains[d] = ""
				}
			}
			saved.Pods[pod] = chains
		}
		o.known, o.given.Rules = true, saved
	case !absent && !ran(c.RuntimeDir):
		o.known, o.unread = true, err
		o.given = Given{From: "no source yet", Rules: policy.Rules{Namespaces: map[string][2]bool{policy.EveryNamespace: {true, true}}}}
		c.Log.Error("the saved NetworkPolicies cannot be read: pods of all namespaces are closed until their source has been read", "err", err)
	case !absent || len(stays.Namespaces) > 0:
		o.given.Rules, o.unsaved = stays, true
		o.problem = fmt.Errorf("the saved rules cannot be read; what the kernel has stays until the source has been read: %w", err)
		c.Log.Error("NetworkPolicy stays as the kernel has it until the source has been read", "err", err)
	}
	return o
}

// ran reports whether an agent has run since the host was started: what it had in force then is.
func ran(runtimeDir string) bool {
	for _, name := range []string{conf.SubnetFile, conf.PoliciesFile} {
		if _, err := os.Stat(filepath.Join(runtimeDir, name)); err == nil {
			return true
		}
	}
	return false
}

// isolating are the namespaces in which the plugin closes new pods, as an agent before left them.
func isolating(runtimeDir string) policy.Rules {
	file, _ := conf.LoadPolicies(runtimeDir) // what is not readable there keeps the plugin from making pods
	out := policy.Rules{Namespaces: map[string][2]bool{}, Except: file.Except}
	for name, directions := range file.Namespaces {
		out.Namespaces[name] = [2]bool{slices.Contains(directions, words[policy.Ingress]), slices.Contains(directions, words[policy.Egress])}
	}
	return out
}

var words = [2]string{"Ingress", "Egress"} //nolint:gochecknoglobals // a constant

// Set brings rules into force, and keeps them for the next start. What the kernel refuses is tried again by Apply.
func (o *Owner) Set(g Given) {
	if len(g.Rules.Namespaces) == 0 {
		g.Rules = policy.Rules{}
	}
	o.mu.Lock()
	before := o.problem
	o.problem = g.Err
	equal := reflect.DeepEqual(g.Rules, o.given.Rules)
	same := g.Err != nil || equal && o.known
	if g.Err == nil {
		o.given, o.unsaved, o.known = g, o.unsaved || !equal, true
		if !g.Closes {
			o.unread = nil
		}
	}
	o.mu.Unlock()
	if g.Err != nil && (before == nil || before.Error() != g.Err.Error()) {
		o.c.Log.Error("policies are unusable; the last good ones stay in force", "source", g.From, "err", g.Err)
	}
	if same {
		return
	}
	o.save.Wake()
	if err := o.Apply(); err != nil {
		o.c.Log.Error("policies are not in force yet; trying again", "source", g.From, "err", err)
	}
}

// Expect has rules in force, and saved, until a source has spoken, unless what was in force is known.
func (o *Owner) Expect(rules policy.Rules) {
	o.mu.Lock()
	known := o.known || o.problem != nil
	o.mu.Unlock()
	if !known {
		o.Set(Given{From: "no source yet", Rules: rules})
		_ = o.saveCopy() // reported
	}
}

// SetOff says that nothing is enforced (networkPolicy: off).
func (o *Owner) SetOff(off bool) {
	o.mu.Lock()
	same := o.off == off
	o.off = off
	o.mu.Unlock()
	if !same {
		_ = o.Apply() // noted
	}
}

// rules are those to enforce; of rules that are not known, no more than the namespaces.
func (o *Owner) rules() (_ policy.Rules, known bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.off {
		return policy.Rules{}, true
	}
	return o.given.Rules, o.known
}

// Local are this node's pods, NAMESPACE/NAME by address.
func (o *Owner) Local() (map[netip.Addr]string, error) {
	named, _, err := o.look()
	return named, err
}

// unrecorded begins the name of a pod of which there is nothing but its port.
const unrecorded = "without-a-record/"

// look returns this node's pods, NAMESPACE/NAME by address, and the addresses of those on the bridge without a record: it is gone, cannot be
// read, or stands in another directory.
func (o *Owner) look() (named map[netip.Addr]string, strays []netip.Addr, _ error) {
	var ports []netip.Addr
	var err error
	if o.c.Ports != nil {
		ports, err = o.c.Ports() // before the records: an ADD writes its record first
	}
	records, err2 := ipam.Look(o.c.DataDir)
	named = map[netip.Addr]string{}
	recorded := map[netip.Addr]bool{}
	for _, r := range records {
		if recorded[r.IP] = recorded[r.IP] || r.InUse(); r.InUse() && r.Named() {
			named[r.IP] = r.Namespace + "/" + r.Pod
		}
	}
	for _, a := range ports {
		if !recorded[a] {
			strays = append(strays, a)
		}
	}
	return named, strays, errors.Join(err, err2)
}

// Apply makes the kernel and the plugin's file hold the rules; it may be called again and again. It fails only where the plugin could
// not be notified: new pods must not be made then.
func (o *Owner) Apply() error {
	o.applying.Lock()
	defer o.applying.Unlock()
	rules, known := o.rules()
	if !known {
		return nil
	}
	file := conf.Policies{Namespaces: map[string][]string{}, Except: rules.Except}
	for name, isolates := range rules.Namespaces {
		for d, word := range words {
			if isolates[d] {
				file.Namespaces[name] = append(file.Namespaces[name], word)
			}
		}
	}
	var written error
	if len(file.Namespaces) == 0 { // before the table goes: an ADD would be refused for the lack of it
		written = o.write(file)
	}
	var placed policy.Placed
	err := o.enforce(rules, &placed)
	var others []string
	var open error
	if o.c.Others != nil {
		others, open = o.c.Others(len(rules.Namespaces) > 0)
	}
	o.mu.Lock()
	o.others, o.open = others, open
	if o.failure = err; err == nil {
		o.placed, o.closed = placed, closedSince(placed, o.closed)
	}
	o.mu.Unlock()
	o.cut.Wake()
	if len(file.Namespaces) == 0 {
		return written
	}
	o.stands.Wake()
	if file.Refused = o.c.Kernel.Partly(); err != nil && !o.c.Kernel.Standing() {
		file.Refused = err.Error()
	}
	return o.write(file)
}

// Stand puts rules back that another program has just deleted with its own (nft flush ruleset): pods are open until then.
func (o *Owner) Stand() {
	if o.c.Kernel.Gone() {
		_ = o.Apply() // noted
	}
}

// closedSince are the pods that are closed, with the times of before.
func closedSince(p policy.Placed, before map[string]time.Time) map[string]time.Time {
	out := map[string]time.Time{}
	for _, place := range p.At {
		if slices.Contains(place.Chains[:], policy.Closed) && !strings.HasPrefix(place.Pod, unrecorded) {
			if out[place.Pod] = before[place.Pod]; out[place.Pod].IsZero() {
				out[place.Pod] = time.Now()
			}
		}
	}
	return out
}

func (o *Owner) enforce(rules policy.Rules, placed *policy.Placed) error {
	if len(rules.Namespaces) > 0 {
		if why := o.c.Kernel.Missing(); why != "" {
			return errors.New(why)
		}
	}
	return o.c.Kernel.Enforce(func() (_ policy.Placed, err error) {
		pods := map[netip.Addr]string{}
		var strays []netip.Addr
		if len(rules.Namespaces) > 0 {
			pods, strays, err = o.look()
		}
		for a, pod := range maps.Clone(pods) { // a pod has the one of its IPv4 address, or of its only one
			pods[conf.LinkLocal(conf.PodMAC(a))] = pod
		}
		*placed = rules.Place(pods)
		for _, a := range strays { // whose they are nobody can say, so no policy can be shown to open them
			stray := policy.Place{Pod: unrecorded + a.String(), Chains: [2]string{policy.Closed, policy.Closed}}
			placed.At[a], placed.At[conf.LinkLocal(conf.PodMAC(a))] = stray, stray
		}
		return *placed, err
	})
}

// write writes the plugin's file; without namespaces there is none.
func (o *Owner) write(file conf.Policies) error {
	path := filepath.Join(o.c.RuntimeDir, conf.PoliciesFile)
	if _, err := os.Stat(path); o.plugin != nil && reflect.DeepEqual(*o.plugin, file) && (err == nil) == (len(file.Namespaces) > 0) {
		return nil
	}
	o.plugin = nil
	if len(file.Namespaces) == 0 {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	} else {
		b, err := json.Marshal(file)
		if err == nil {
			err = durable.WriteFile(path, b, 0o644)
		}
		if err != nil {
			return err
		}
	}
	o.plugin = &file
	return nil
}

// InForce is what is enforced now.
type InForce struct {
	policy.Placed
	From    string
	Off     bool
	Problem error // why the source's policies are not those in force
	Failure error // why the kernel does not hold them
	Saving  error // why an offline start would enforce older ones
	Unread  error // why the saved ones cannot be read, so that all pods are closed
}

// InForce returns what is enforced now.
func (o *Owner) InForce() InForce {
	o.mu.Lock()
	defer o.mu.Unlock()
	return InForce{o.placed, o.given.From, o.off, o.problem, o.failure, o.saving, o.unread}
}

// Given are the rules that are in force, or saved and about to be, whether or not policies are off.
func (o *Owner) Given() policy.Rules {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.given.Rules
}

// OnPods has f called whenever Local may have changed, from one goroutine at a time. It must be called before Run.
func (o *Owner) OnPods(f func()) { o.changed = append(o.changed, f) }

const (
	// podsPoll is how often records are read where the kernel does not report changes, podsLook where it does; podsSoon and podsLate are
	// the pauses before further looks at new pods. A look at connections is followed by a pause of cutShare times what it took, but at least
	// cutSoon and at most cutRest, and after errors up to cutMost. saveRest is the least time between two writes of the copy, of which saveBurst
	// more go out immediately, and saveAgain the pause after one that failed.
	podsPoll  = 1500 * time.Millisecond
	podsLook  = 30 * time.Second
	podsSoon  = 200 * time.Millisecond
	podsLate  = 2 * time.Second
	cutShare  = 20 // 5 % of a CPU, as long as a look takes less than 50 ms
	cutSoon   = 50 * time.Millisecond
	cutRest   = time.Second
	cutMost   = 30 * time.Second
	saveRest  = 2 * time.Second
	saveBurst = 5 // a policy comes into force in several steps, and the power may fail right after the last one
	saveAgain = 10 * time.Second
)

// Run judges new pods, and keeps the copy on disk, until ctx ends.
func (o *Owner) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { o.keep(ctx) })
	wg.Go(func() { o.cutLost(ctx) })
	wg.Go(func() { o.logDrops(ctx) })
	var events <-chan fsnotify.Event
	var lost <-chan error
	every, watch := podsPoll, func() {}
	if fs, err := fsnotify.NewWatcher(); err == nil {
		defer fs.Close()
		if fs.Add(o.c.DataDir) == nil {
			events, lost, every = fs.Events, fs.Errors, podsLook
			watch = func() { _ = fs.Add(o.c.DataDir) } // it may have been removed and made again
		}
	}
	poll := time.NewTicker(every)
	defer poll.Stop()
	last, lastStrays := map[netip.Addr]string{}, []netip.Addr(nil)
	var again <-chan time.Time // ADD closes the pod just after it has written the record, on a busy node later
	late := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-events:
			for more := true; more; { // an ADD writes several times
				select {
				case <-events:
				case <-time.After(2 * time.Millisecond):
					more = false
				}
			}
		case <-lost: // events
		case <-poll.C:
			watch()
		case <-again:
			if again = nil; !late {
				again, late = time.After(podsLate), true
			}
			_ = o.Apply() // noted
			continue
		}
		if rules, _ := o.rules(); len(rules.Namespaces) == 0 {
			continue
		}
		pods, strays, err := o.look()
		if err != nil || maps.Equal(pods, last) && slices.Equal(strays, lastStrays) {
			continue
		}
		last, lastStrays, again, late = pods, strays, time.After(podsSoon), false
		for _, f := range o.changed {
			f()
		}
		_ = o.Apply() // noted
	}
}

// cutLost cuts connections that have lost their right, until ctx ends. What a kill interrupts the next start does.
func (o *Owner) cutLost(ctx context.Context) {
	failing := cutRest
	for {
		select {
		case <-ctx.Done():
			return
		case <-o.cut:
		}
		start := time.Now()
		err := o.c.Kernel.Cut()
		pause := min(max(cutShare*time.Since(start), cutSoon), cutRest)
		if err == nil {
			failing = cutRest
		} else {
			if failing == cutRest {
				o.c.Log.Warn("connections that NetworkPolicy no longer allows may continue; trying again", "err", err)
			}
			failing = min(2*failing, cutMost)
			pause = failing
			o.cut.Wake()
		}
		if !wake.Sleep(ctx, pause) {
			return
		}
	}
}

// keep writes rules that changed to disk, again and again where that fails.
func (o *Owner) keep(ctx context.Context) {
	var again <-chan time.Time
	writes := rate.NewLimiter(rate.Every(saveRest), saveBurst)
	for more := true; more; {
		select {
		case <-ctx.Done():
			more = false
		case <-o.save:
		case <-again:
		}
		again = nil
		if o.saveCopy() != nil {
			again = time.After(saveAgain)
		}
		if more {
			_ = writes.Wait(ctx) // at its end what is unsaved is saved
		}
	}
}

// saveCopy writes rules that changed to disk.
func (o *Owner) saveCopy() error {
	o.saves.Lock()
	defer o.saves.Unlock()
	o.mu.Lock()
	rules, unsaved, before := o.given.Rules, o.unsaved && o.known, o.saving
	o.unsaved = o.unsaved && !o.known
	o.mu.Unlock()
	if !unsaved {
		return nil
	}
	path := filepath.Join(o.c.StateDir, File)
	b, err := json.Marshal(rules)
	if err == nil {
		err = durable.WriteFile(path, b, 0o600)
	}
	o.mu.Lock()
	o.saving, o.unsaved = err, o.unsaved || err != nil
	o.mu.Unlock()
	if err != nil && before == nil {
		o.c.Log.Error("could not save the policies; trying again; an offline start would enforce older ones", "file", path, "err", err)
	}
	return err
}
