package nft

import (
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	policy "edgemesh/agent/policy/compile"
	"edgemesh/internal/cni/closing"
)

const (
	trialTable = closing.Table + "-trial" // it stands for an instant, see refused
	wholeEvery = 20 * time.Second         // how often sets are read from the kernel: less than the repair's period
)

// Policies brings NetworkPolicy into the kernel. Its methods may be called from several goroutines.
type Policies struct {
	log *slog.Logger

	mu         sync.Mutex
	placed     policy.Placed // as in the kernel
	sets       map[string]elementSet
	whole      time.Time // when sets were last read from the kernel
	generation uint32    // of the kernel's tables, after the last pass that changed nothing or all
	standing   bool
	uncut      bool // connections that have lost their right may be left
	changed    bool // what was cut may have its right again
	refusal    refusal
	held       held
}

// refusal is what the kernel refused last. Its policy is looked for once: the search changes the kernel's tables, which wakes the next pass.
type refusal struct {
	want   policy.Placed
	text   string // the kernel's error
	policy string // "" if not found
}

// refusedError is the kernel's of a whole transaction.
type refusedError struct{ error }

func (e refusedError) Unwrap() error { return e.error }

// NewPolicies returns Policies.
func NewPolicies(log *slog.Logger) *Policies { return &Policies{log: log, held: held{log: log}} }

// Standing reports whether rules are in force, so that new pods can be closed.
func (p *Policies) Standing() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.standing
}

// Gone reports whether another program has deleted the table. It is one request where nothing else has changed either.
func (p *Policies) Gone() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.standing {
		return false
	}
	table, err := find(conn(), closing.Table)
	return table == nil && err == nil
}

// Missing returns the reason why this kernel can hold no policies, "" if it can.
func (*Policies) Missing() string {
	if _, err := conn().ListTablesOfFamily(nftables.TableFamilyINet); err != nil {
		return fmt.Sprintf("the kernel has no nf_tables to enforce NetworkPolicy with (modprobe nf_tables): %v", err)
	}
	return ""
}

// Enforce brings into force what place returns, in one transaction; the former rules stay where the kernel refuses it, and the error
// names the policy. It calls place after it has read which pods are closed. Connections that lose their right are Cut's.
func (p *Policies) Enforce(place func() (policy.Placed, error)) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var want policy.Placed
	var err error
	for range 3 { // the plugin, or another program, may change the table between a look and the change
		if err = p.enforce(place, &want); !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.EBUSY) {
			break
		}
		p.sets = nil
	}
	if err == nil {
		p.refusal = refusal{}
		return nil
	}
	p.sets, p.generation = nil, 0
	if errors.As(err, new(refusedError)) {
		if p.refusal.text != err.Error() || !reflect.DeepEqual(p.refusal.want, want) {
			p.refusal = refusal{want, err.Error(), refused(want)}
		}
		if by := p.refusal.policy; by != "" {
			err = fmt.Errorf("NetworkPolicy %s: %w", by, err)
		}
	}
	return err
}

func (p *Policies) enforce(place func() (policy.Placed, error), want *policy.Placed) error {
	now, err := generation()
	if err != nil {
		why := p.Missing()
		if why == "" { // it answers by now: the rules stand as they did
			return err
		}
		p.standing = false
		if *want, err = place(); err == nil && len(want.Namespaces) > 0 {
			err = errors.New(why)
		}
		return err
	}
	if now == p.generation {
		if *want, err = place(); err != nil || reflect.DeepEqual(*want, p.placed) && !(p.standing && p.held.missing()) {
			return err
		}
	}
	whole := time.Since(p.whole) >= wholeEvery
	if whole { // another program may have changed members
		p.sets = nil
	}
	have, err := readPolicies(p.sets)
	if err != nil {
		return err
	}
	if whole {
		p.whole = time.Now()
	}
	p.standing = have.exists
	if *want, err = place(); err != nil {
		return err
	}
	rules, changes := rulesOf(*want), 0
	c := bulk()
	if len(want.Namespaces) > 0 {
		changes, err = have.change(c, policyTable, rules)
	} else if have.exists {
		c.DelTable(policyTable)
		changes++
	}
	if err == nil && changes > 0 {
		err = c.Flush()
	}
	if err != nil {
		return refusedError{fmt.Errorf("nftables table %s: %w", closing.Table, err)}
	}
	if len(want.Namespaces) > 0 {
		p.held.hold(rules)
	} else {
		p.held.drop()
	}
	p.changed = p.changed || changes > 0
	p.uncut = p.uncut || have.opens(rules) || narrows(p.placed, *want)
	p.placed, p.sets, p.standing = *want, map[string]elementSet{}, len(want.Namespaces) > 0
	for name, s := range rules.sets {
		p.sets[name] = s.elementSet
	}
	if p.generation = now; changes > 0 || !whole {
		p.generation = 0 // the next pass looks whether only we changed something
	}
	return nil
}

// narrows reports whether now lets less through than before, or other pods have addresses. A chain's name stands for its rules.
func narrows(before, now policy.Placed) bool {
	for a, place := range now.At {
		was := before.At[a]
		for d, chain := range place.Chains {
			if was.Pod != place.Pod || chain != "" && chain != was.Chains[d] && was.Chains[d] != policy.Closed {
				return true
			}
		}
	}
	for id, was := range before.Sets {
		is, used := now.Sets[id]
		if !used || slices.Equal(was, is) {
			continue // where it is no longer used, chains differ
		}
		left := make(map[policy.Member]bool, len(is))
		for _, m := range is {
			left[m] = true
		}
		if slices.ContainsFunc(was, func(m policy.Member) bool { return !left[m] }) {
			return true
		}
	}
	return false
}

// opens reports whether pods are open that should not be.
func (have policyState) opens(want policyRules) bool {
	for name, places := range want.maps {
		for key := range places {
			if have.maps[name][key] == "" || !have.framed {
				return true
			}
		}
	}
	return false
}

// refused finds the policy whose rules the kernel refuses, by making those of each alone, in a table without hooks.
func refused(p policy.Placed) string {
	trial := &nftables.Table{Name: trialTable, Family: nftables.TableFamilyINet}
	_ = removeTrial()
	tried := map[string]bool{}
	for _, place := range p.At {
		for d, name := range place.Chains {
			d := policy.Direction(d)
			if tried[chainName(d, name)] {
				continue
			}
			tried[chainName(d, name)] = true
			for _, a := range p.Chains[name].Accepts {
				one := policyRules{sets: map[string]policySet{}, chains: map[string][]policyRule{}}
				for _, w := range one.accept(p, d, a) {
					one.chains["trial"] = append(one.chains["trial"], policyRule{words: w})
				}
				c := bulk()
				_, err := policyState{framed: true}.change(c, trial, one)
				if errors.Join(err, c.Flush()) != nil {
					return a.Policy
				}
				c.DelTable(trial)
				_ = c.Flush() // it has just been made
			}
		}
	}
	return ""
}

// removeTrial deletes what a kill left of a search.
func removeTrial() error {
	c := conn()
	trial, err := find(c, trialTable)
	if trial == nil || err != nil {
		return nil
	}
	c.DelTable(trial)
	return c.Flush()
}
