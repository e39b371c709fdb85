package host

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"

	"edgemesh/agent/control"
	"edgemesh/agent/mesh"
)

func finding(check string, grade control.Severity, detail, remedy string) control.Finding {
	return control.Finding{Check: check, Severity: grade, Detail: detail, Remedy: remedy}
}

// Check compares the kernel's state with w and changes nothing: what Set would
// repair is broken now.
func (h *Host) Check(ctx context.Context, w mesh.Host) []control.Finding {
	h.mu.Lock()
	defer h.mu.Unlock()
	fs, err := h.families(w)
	if err != nil {
		return []control.Finding{finding("host", control.Broken, err.Error(), "install what is missing and restart the agent")}
	}
	var out []control.Finding
	at := map[string]int{} // finding of each part; several parts may share a name
	for _, p := range h.parts(fs) {
		if ctx.Err() != nil {
			return append(out, finding("host", control.Broken, "not examined to the end: "+ctx.Err().Error(), "try again"))
		}
		changes, err := p.diff()
		cause := ""
		if err != nil {
			cause = err.Error()
		} else if len(changes) > 0 {
			cause = missing(changes)
		}
		i, seen := at[p.name]
		if !seen {
			i = len(out)
			at[p.name] = i
			out = append(out, finding(p.name, control.OK, "as it should be", ""))
		}
		if cause == "" {
			continue
		}
		if f := &out[i]; f.Severity == control.OK {
			*f = finding(p.name, control.Broken, cause, p.remedy)
		} else {
			f.Detail += "; " + cause
		}
	}
	if i := at["tun"]; out[i].Severity == control.OK {
		if err := tunHeld(); err != nil {
			out[i] = finding("tun", control.Broken, err.Error(), "start the agent")
		}
	}
	if h.noIPv6 != "" && wantsIPv6(w) {
		out = append(out, finding("ipv6", control.Warning, "pods of this node get no IPv6: "+h.noIPv6,
			"enable IPv6 on this host, install ip6tables, or give the node IPv4 blocks only"))
	}
	if f, ok := checkNativeFilter(ctx, h.fw.look); ok {
		out = append(out, f)
	}
	return out
}

// checkNativeFilter looks for what no rule of ours can overrule: an nftables
// chain beside iptables' own whose policy drops what is forwarded (firewalld).
func checkNativeFilter(ctx context.Context, look lookup) (control.Finding, bool) {
	nft := look("nft")
	if nft == "" {
		return control.Finding{}, false
	}
	out, err := exec.CommandContext(ctx, nft, "list", "chains").Output()
	if err != nil {
		return control.Finding{}, false // no nftables in the kernel, so no such chain
	}
	var table string
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "table "); ok {
			table = strings.TrimSuffix(name, " {")
		}
		iptables := table == "ip filter" || table == "ip6 filter" // looked at as FORWARD
		if !iptables && strings.HasPrefix(line, "type filter hook forward") && strings.Contains(line, "policy drop") {
			return finding("nftables", control.Warning,
				"table "+table+" drops forwarded packets by policy, after iptables accepted them",
				"if pods have no connection, accept the interfaces "+BridgeName+" and "+TUNName+" there (firewalld: add both to the zone trusted)"), true
		}
	}
	return control.Finding{}, false
}

// missing puts what is to be changed in one line.
func missing(changes []change) string {
	const most = 4
	var parts []string
	for _, c := range changes[:min(len(changes), most)] {
		parts = append(parts, c.what)
	}
	s := "missing: " + strings.Join(parts, "; ")
	if n := len(changes) - most; n > 0 {
		s += fmt.Sprintf("; and %d more", n)
	}
	return s
}

// tunHeld tells whether a process has the TUN open: the kernel gives it a
// carrier then.
func tunHeld() error {
	link, err := findLink(TUNName, "tuntap")
	if err != nil {
		return err
	}
	if link == nil {
		return ErrNoTUN
	}
	if link.Attrs().RawFlags&unix.IFF_LOWER_UP == 0 {
		return errors.New("no process has the TUN " + TUNName + " open: packets to other nodes are dropped")
	}
	return nil
}
