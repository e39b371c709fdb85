package iptables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coreos/go-iptables/iptables"
)

// lockWait is how long iptables waits for its lock, in seconds.
const lockWait = 10

// programTime bounds a run of one of iptables' programs, its wait for the lock included: one that never ends would stop repair.
const programTime = 30 * time.Second

// run runs a program for limit at most, and returns what it prints.
func run(limit time.Duration, stdin, path string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	c := exec.CommandContext(ctx, path, args...)
	if stdin != "" {
		c.Stdin = strings.NewReader(stdin)
	}
	c.WaitDelay = time.Second // its children may keep its output open
	out, err := c.Output()
	if e := new(exec.ExitError); ctx.Err() != nil {
		err = fmt.Errorf("it did not end within %v", limit)
	} else if errors.As(err, &e) {
		err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(e.Stderr))
	}
	return string(out), err
}

// Modes of an iptables binary.
const (
	modeNFT    = "nft"
	modeLegacy = "legacy"
)

// backend is one iptables binary: a family and a mode.
type backend struct {
	path string // iptables-nft, ip6tables-legacy, …
	mode string
	v6   bool
	ipt  *iptables.IPTables
}

func (b *backend) version() string {
	if b.v6 {
		return "IPv6"
	}
	return "IPv4"
}

// save reads all tables in one call. With the legacy backend it reads only tables
// that exist: reading must not create tables.
func (b *backend) save() (ruleset, error) {
	if b.mode == modeLegacy && !legacyInUse(b.v6) {
		return ruleset{chains: map[key][]string{}, policy: map[key]string{}}, nil
	}
	out, err := run(programTime, "", b.path+"-save")
	if err != nil {
		return ruleset{}, fmt.Errorf("%s-save: %w", b.path, err)
	}
	return parseSave(out), nil
}

// dropEmpty removes the built-in chains that nft created for us, in tables where only
// empty chains with policy ACCEPT are left.
func (b *backend) dropEmpty(had ruleset) error {
	if b.mode != modeNFT {
		return nil
	}
	touched := map[string]bool{}
	for _, k := range had.order {
		if strings.HasPrefix(k.chain, Prefix) {
			touched[k.table] = true
		}
	}
	have, err := b.save()
	if err != nil {
		return err
	}
	for _, k := range have.order {
		if len(have.chains[k]) > 0 || have.policy[k] != "ACCEPT" {
			delete(touched, k.table)
		}
	}
	for table := range touched {
		// Without a name, -X deletes every empty chain, built-in ones included.
		if _, err := run(programTime, "", b.path, "-w", strconv.Itoa(lockWait), "-t", table, "-X"); err != nil {
			return fmt.Errorf("%s -t %s -X: %w", b.path, table, err)
		}
	}
	return nil
}

// legacyInUse reports whether the kernel has legacy tables of a family in the
// network namespace of this thread.
func legacyInUse(v6 bool) bool {
	file := map[bool]string{false: "ip_tables_names", true: "ip6_tables_names"}[v6]
	b, err := os.ReadFile("/proc/thread-self/net/" + file)
	return err == nil && len(bytes.TrimSpace(b)) > 0
}

// load makes the go-iptables handle.
func (b *backend) load() error {
	proto := iptables.ProtocolIPv4
	if b.v6 {
		proto = iptables.ProtocolIPv6
	}
	ipt, err := iptables.New(iptables.Path(b.path), iptables.IPFamily(proto), iptables.Timeout(lockWait))
	if err != nil {
		return fmt.Errorf("%s: %w", b.path, err)
	}
	b.ipt = ipt
	return nil
}

// change makes several changes to a table's rules in one transaction: all of them or none. They are written as
// iptables-save prints rules. What is to be deleted is named by its text, never by its number, which other programs change
// at any time; if it is gone by now, that is an error.
func (b *backend) change(table string, lines ...string) error {
	rules := "*" + table + "\n" + strings.Join(lines, "\n") + "\nCOMMIT\n"
	if _, err := run(programTime, rules, b.path+"-restore", "-w", strconv.Itoa(lockWait), "--noflush"); err != nil {
		return fmt.Errorf("%s-restore, table %s: %w", b.path, table, err)
	}
	return nil
}

// placeJump deletes all jumps to c and inserts one where it belongs, without a moment between.
func placeJump(b *backend, have ruleset, c chain) error {
	if have.jumpInPlace(c) {
		return nil
	}
	var lines []string
	at := jumpPosition(have, c)
	before := 0
	for i, rule := range have.chains[key{c.table, c.hook}] {
		if !jumpsTo(rule, c.name) {
			continue
		}
		lines = append(lines, "-D "+c.hook+" "+rule)
		if i < at {
			before++
		}
	}
	return b.change(c.table, append(lines, fmt.Sprintf("-I %s %d %s", c.hook, at-before+1, c.jump()))...)
}

// fill gives a chain its rules, and makes it if need be, in one transaction: at every moment one set or the other is complete.
// To name a chain empties it, whatever --noflush says. A program for each rule took seconds where starting one takes 10 ms.
func fill(b *backend, c chain) error {
	lines := []string{":" + c.name + " - [0:0]"}
	for _, rule := range c.rules {
		lines = append(lines, "-A "+c.name+" "+rule)
	}
	return b.change(c.table, lines...)
}

// removeChains deletes the rules that jump to the chains, then the chains.
func removeChains(b *backend, have ruleset, gone []key) error {
	for _, k := range have.order {
		var lines []string
		for _, rule := range have.chains[k] {
			if slices.ContainsFunc(gone, func(g key) bool { return g.table == k.table && jumpsTo(rule, g.chain) }) {
				lines = append(lines, "-D "+k.chain+" "+rule)
			}
		}
		if len(lines) == 0 {
			continue
		}
		if err := b.change(k.table, lines...); err != nil {
			return err
		}
	}
	for _, k := range gone {
		if err := b.ipt.ClearAndDeleteChain(k.table, k.chain); err != nil {
			return err
		}
	}
	return nil
}

// tries is how often a change is tried that another program's may have spoiled.
const tries = 3

// again does something with the rules of this moment, until it succeeds.
func (b *backend) again(do func(now ruleset) error) error {
	for i := 1; ; i++ {
		now, err := b.save()
		if err == nil {
			err = do(now)
		}
		if err == nil || i == tries {
			return err
		}
	}
}
