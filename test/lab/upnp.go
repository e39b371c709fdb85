package lab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// UPnP says which protocols a site's router speaks to those who want a port.
type UPnP struct {
	IGD bool // UPnP-IGD
	PCP bool // PCP and NAT-PMP
}

// StartUPnP starts miniupnpd on the site's router.
func (s *Site) StartUPnP(o UPnP) (*Process, error) {
	yes := map[bool]string{true: "yes", false: "no"}
	conf := filepath.Join(s.lab.Dir, s.Name+"-miniupnpd.conf")
	text := strings.Join([]string{
		"ext_ifname=wan0", "listening_ip=" + lanBridge, "http_port=0", "secure_mode=yes",
		"enable_upnp=" + yes[o.IGD], "enable_natpmp=" + yes[o.PCP],
		"uuid=00000000-0000-0000-0000-000000000000", "upnp_table_name=upnp", "upnp_nat_table_name=upnp",
		"upnp_forward_chain=mapfwd", "upnp_nat_chain=mappre", "upnp_nat_postrouting_chain=mappost",
		"allow 1024-65535 0.0.0.0/0 1024-65535", "deny 0-65535 0.0.0.0/0 0-65535", "",
	}, "\n")
	if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
		return nil, fmt.Errorf("miniupnpd: %w", err)
	}
	err := s.Router.Script(
		"nft add table inet upnp",
		"nft add chain inet upnp mapfwd",
		"nft add chain inet upnp mappre",
		"nft add chain inet upnp mappost",
		"nft add chain inet upnp forward '{ type filter hook forward priority 0; }'",
		"nft add rule inet upnp forward jump mapfwd",
		"nft add chain inet upnp prerouting '{ type nat hook prerouting priority -100; }'",
		"nft add rule inet upnp prerouting jump mappre",
		// What was let in by a mapping passes the router's other firewall too.
		"iptables -w -I FORWARD -m conntrack --ctstate DNAT -j ACCEPT")
	if err != nil {
		return nil, fmt.Errorf("miniupnpd: %w", err)
	}
	p, err := s.Router.Start("miniupnpd-"+s.Name, "miniupnpd", "-d", "-f", conf, "-P", conf+".pid")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return p, Until(ctx, 20*time.Millisecond, func() error {
		if !p.Running() {
			return fmt.Errorf("miniupnpd ended: %s\n%s", p.state(), p.Tail(10))
		}
		out, err := s.Router.Run(ctx, "ss", "-Hlun", "sport = :1900 or sport = :5351")
		if err == nil && strings.TrimSpace(out) == "" {
			err = fmt.Errorf("miniupnpd does not listen yet")
		}
		return err
	})
}

// Mappings returns the router's mappings, one line each.
func (s *Site) Mappings(ctx context.Context) ([]string, error) {
	out, err := s.Router.Run(ctx, "nft", "list", "chain", "inet", "upnp", "mappre")
	if err != nil {
		return nil, err
	}
	var lines []string
	for line := range strings.Lines(out) {
		if strings.Contains(line, "dnat") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines, nil
}
