package host

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/coreos/go-iptables/iptables"

	"edgemesh/agent/control"
)

// lockWait is how long iptables waits for its lock, in seconds.
const lockWait = 10

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

// key names a chain.
type key struct{ table, chain string }

// ruleset is what iptables-save prints: rules per chain as text, without
// "-A CHAIN ".
type ruleset struct {
	order  []key // as printed
	chains map[key][]string
	policy map[key]string // "-" for chains that are not built in
}

func (b *backend) version() string {
	if b.v6 {
		return "IPv6"
	}
	return "IPv4"
}

// save reads all tables at once. For the legacy backend it reads only tables
// the kernel already has: looking must not make tables.
func (b *backend) save() (ruleset, error) {
	if b.mode == modeLegacy && !legacyInUse(b.v6) {
		return ruleset{chains: map[key][]string{}, policy: map[key]string{}}, nil
	}
	var stderr bytes.Buffer
	c := exec.Command(b.path + "-save")
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		return ruleset{}, fmt.Errorf("%s: %w: %s", c.Path, err, strings.TrimSpace(stderr.String()))
	}
	return parseSave(string(out)), nil
}

func parseSave(text string) ruleset {
	rs := ruleset{chains: map[key][]string{}, policy: map[key]string{}}
	table := ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \n")
		switch {
		case strings.HasPrefix(line, "*"):
			table = line[1:]
		case strings.HasPrefix(line, ":"):
			name, rest, _ := strings.Cut(line[1:], " ")
			policy, _, _ := strings.Cut(rest, " ")
			k := key{table, name}
			rs.order = append(rs.order, k)
			rs.chains[k] = nil
			rs.policy[k] = policy
		case strings.HasPrefix(line, "-A "):
			name, rule, _ := strings.Cut(line[3:], " ")
			k := key{table, name}
			rs.chains[k] = append(rs.chains[k], rule)
		}
	}
	return rs
}

// dropEmpty removes the built-in chains that nft made for us, in tables where
// nothing is left but empty chains that accept.
func (b *backend) dropEmpty(had ruleset) error {
	if b.mode != modeNFT {
		return nil
	}
	touched := map[string]bool{}
	for _, k := range had.order {
		if strings.HasPrefix(k.chain, ChainPrefix) {
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
		if out, err := exec.Command(b.path, "-w", "-t", table, "-X").CombinedOutput(); err != nil {
			return fmt.Errorf("%s -t %s -X: %w: %s", b.path, table, err, strings.TrimSpace(string(out)))
		}
	}
	return nil
}

// hasHint reports whether kubelet left its hint for the backend it uses.
func (rs ruleset) hasHint() bool {
	_, hint := rs.chains[key{"mangle", "KUBE-IPTABLES-HINT"}]
	_, canary := rs.chains[key{"mangle", "KUBE-KUBELET-CANARY"}]
	return hint || canary
}

// foreign counts the rules that are not ours.
func (rs ruleset) foreign() int {
	n := 0
	for k, rules := range rs.chains {
		if strings.HasPrefix(k.chain, ChainPrefix) {
			continue
		}
		for _, r := range rules {
			if !strings.Contains(r, "-j "+ChainPrefix) {
				n++
			}
		}
	}
	return n
}

// legacyInUse reports whether the kernel has legacy tables of a family in the
// network namespace of this thread.
func legacyInUse(v6 bool) bool {
	file := "/proc/thread-self/net/ip_tables_names"
	if v6 {
		file = "/proc/thread-self/net/ip6_tables_names"
	}
	b, err := os.ReadFile(file)
	return err == nil && len(bytes.TrimSpace(b)) > 0
}

// chooseBackends picks the mode the host uses: kubelet's hint first, then the
// mode with more rules of others, then what plain `iptables` is. v6 is nil
// with a reason when ip6tables is missing or does not work.
func (look lookup) chooseBackends() (v4, v6 *backend, noV6 string, err error) {
	modes := look.modes(false)
	if len(modes) == 0 {
		return nil, nil, "", ErrNoIPTables
	}
	type vote struct {
		hint  bool
		rules int
	}
	votes := map[string]vote{}
	var failures []error
	for _, b := range modes {
		rs, err := b.save()
		if err != nil {
			failures = append(failures, err)
			continue
		}
		v := vote{rs.hasHint(), rs.foreign()}
		if b6 := look.mode(true, b.mode); b6 != nil {
			if rs, err := b6.save(); err == nil {
				v.hint = v.hint || rs.hasHint()
				v.rules += rs.foreign()
			}
		}
		votes[b.mode] = v
	}
	for _, b := range modes { // the plain iptables' mode comes first
		v, ok := votes[b.mode]
		if !ok {
			continue
		}
		if best := votes[modeOf(v4)]; v4 == nil || v.hint && !best.hint || v.hint == best.hint && v.rules > best.rules {
			v4 = b
		}
	}
	if v4 == nil {
		return nil, nil, "", fmt.Errorf("%w, or does not work here: %w", ErrNoIPTables, errors.Join(failures...))
	}
	if err := v4.load(); err != nil {
		return nil, nil, "", err
	}
	v6, noV6 = look.chooseV6(v4.mode)
	return v4, v6, noV6, nil
}

// Usable says whether this host has an iptables that works; it changes nothing. The
// error wraps ErrNoIPTables when there is none.
func Usable() error {
	_, _, _, err := lookup(lookPath).chooseBackends()
	return err
}

// mixed tells of rules of others in both backends. Packets meet both; the operator
// sees one of them.
func (fw *firewall) mixed() (control.Finding, bool) {
	count := func(b *backend) int {
		if b == nil {
			return 0
		}
		rs, err := b.save()
		if err != nil {
			return 0
		}
		return rs.foreign()
	}
	if fw.v4 == nil {
		return control.Finding{}, false
	}
	ours, other, mode := count(fw.v4)+count(fw.v6), 0, ""
	for _, b := range fw.look.otherBackends(fw.v4, fw.v6) {
		if b.mode != fw.v4.mode {
			other, mode = other+count(b), b.mode
		}
	}
	if ours == 0 || other == 0 {
		return control.Finding{}, false
	}
	return finding("iptables", control.Warning,
		fmt.Sprintf("mixed backends: %d rules of others are in %s, which ours are in too, and %d in %s; a packet must pass both, and a FORWARD that drops in %s is not overruled",
			ours, fw.v4.mode, other, mode, mode),
		fmt.Sprintf("let all programs use one backend (update-alternatives --set iptables /usr/sbin/iptables-%s, then restart them), and delete the rules left in %s",
			fw.v4.mode, mode)), true
}

func (look lookup) chooseV6(mode string) (*backend, string) {
	b := look.mode(true, mode)
	if b == nil {
		return nil, "ip6tables is missing (apt install iptables)"
	}
	if _, err := b.save(); err != nil {
		return nil, "ip6tables does not work: " + err.Error()
	}
	if err := b.load(); err != nil {
		return nil, "ip6tables does not work: " + err.Error()
	}
	return b, ""
}

func modeOf(b *backend) string {
	if b == nil {
		return ""
	}
	return b.mode
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

// otherBackends lists the usable backends that are not in use.
func (look lookup) otherBackends(inUse ...*backend) []*backend {
	var out []*backend
	for _, v6 := range []bool{false, true} {
		for _, b := range look.modes(v6) {
			used := false
			for _, u := range inUse {
				used = used || u != nil && u.v6 == v6 && u.mode == b.mode
			}
			if !used && b.load() == nil {
				out = append(out, b)
			}
		}
	}
	return out
}

// mode returns the binary of one mode, nil when there is none.
func (look lookup) mode(v6 bool, mode string) *backend {
	for _, b := range look.modes(v6) {
		if b.mode == mode {
			return b
		}
	}
	return nil
}

// modes lists the binaries there are, at most one per mode; the one that
// plain iptables stands for comes first.
func (look lookup) modes(v6 bool) []*backend {
	base := "iptables"
	if v6 {
		base = "ip6tables"
	}
	var out []*backend
	if plain := look(base); plain != "" {
		version, err := exec.Command(plain, "--version").Output()
		if err == nil {
			mode := modeLegacy
			if strings.Contains(string(version), "nf_tables") {
				mode = modeNFT
			}
			out = append(out, &backend{path: plain, mode: mode, v6: v6})
		}
	}
	for _, mode := range []string{modeNFT, modeLegacy} {
		if len(out) > 0 && out[0].mode == mode {
			continue
		}
		if p := look(base + "-" + mode); p != "" {
			out = append(out, &backend{path: p, mode: mode, v6: v6})
		}
	}
	return out
}

// lookup finds a program by name; "" means there is none.
type lookup func(name string) string

// lookPath finds a program in PATH or where system programs are; services may
// be started without the latter.
func lookPath(name string) string {
	if p, err := exec.LookPath(name); err == nil {
		return p
	}
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/local/sbin"} {
		if p, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return p
		}
	}
	return ""
}
