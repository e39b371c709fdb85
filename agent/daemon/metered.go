package daemon

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"

	"edgemesh/internal/config"
	"edgemesh/internal/membership/keep"
	"edgemesh/internal/resolve"
	"edgemesh/internal/wake"
)

// meteredEvery is how often the uplink is looked at, which sends nothing.
const meteredEvery = 10 * time.Second

// metered is whether each byte on this node's uplink is paid for.
type metered struct {
	key         config.Metered
	annotations func() map[string]string
	now         atomic.Pointer[uplinkCost]
}

// uplinkCost is an answer, and what it is known from.
type uplinkCost struct {
	paid bool
	from string
}

// newMetered looks once. annotations are those of this node's Node.
func newMetered(key config.Metered, annotations func() map[string]string) *metered {
	m := &metered{key: key, annotations: annotations}
	m.look()
	return m
}

// Paid reports whether bytes are paid for.
func (m *metered) Paid() bool { return m.now.Load().paid }

// run looks again now and then, until ctx ends: the uplink may become another one.
func (m *metered) run(ctx context.Context) {
	for wake.Sleep(ctx, meteredEvery) {
		m.look()
	}
}

func (m *metered) look() {
	c := uplinkCost{from: "uplink.metered"}
	switch text := m.annotations()[keep.MeteredAnnotation]; {
	case text == string(config.MeteredYes) || text == string(config.MeteredNo):
		c = uplinkCost{text == string(config.MeteredYes), "the Node's annotation " + keep.MeteredAnnotation}
	case m.key == config.MeteredAuto:
		c = costOf(netlinkUplinks(), "/", resolve.Mounted)
	default:
		c.paid = m.key == config.MeteredYes
	}
	m.now.Store(&c)
}

// uplinkLink is an interface with a default route.
type uplinkLink struct {
	name  string
	kind  string // as the kernel names it
	index int
}

// netlinkUplinks are the interfaces with a default route.
func netlinkUplinks() (out []uplinkLink) {
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: 254}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil
	}
	for _, r := range routes {
		if r.Dst != nil && !r.Dst.IP.IsUnspecified() {
			continue
		}
		l, err := netlink.LinkByIndex(r.LinkIndex)
		if err == nil && !slices.ContainsFunc(out, func(u uplinkLink) bool { return u.index == r.LinkIndex }) {
			out = append(out, uplinkLink{l.Attrs().Name, l.Attrs().EncapType, r.LinkIndex})
		}
	}
	return out
}

// costOf judges interfaces: those of modems, and those that NetworkManager calls metered. In a container, what is
// mounted of its files is below another one of the roots.
func costOf(links []uplinkLink, roots ...string) uplinkCost {
	for _, l := range links {
		uevent, _ := os.ReadFile(filepath.Join(roots[0], "sys/class/net", l.name, "uevent"))
		switch {
		case slices.ContainsFunc([]string{"wwan", "ppp", "rmnet"}, func(p string) bool { return strings.HasPrefix(l.name, p) }),
			l.kind == "ppp", strings.Contains(string(uevent), "DEVTYPE=wwan"):
			return uplinkCost{true, "the interface " + l.name + ", a modem's"}
		case slices.ContainsFunc(roots, func(root string) bool { return managedMetered(l.index, root) }):
			return uplinkCost{true, "NetworkManager's connection of " + l.name}
		}
	}
	return uplinkCost{false, "the interfaces with a default route"}
}

// managedMetered reports whether the connection that NetworkManager uses on an interface is marked as metered (nm-settings-nmcli(5),
// connection.metered: 1 is yes). Profiles in /etc have the secrets of Wi-Fi: manifests do not mount them, and pods see those in /run alone.
func managedMetered(index int, root string) bool {
	device, _ := os.ReadFile(filepath.Join(root, "run/NetworkManager/devices", fmt.Sprint(index)))
	uuid := value(string(device), "connection-uuid")
	if uuid == "" {
		return false
	}
	for _, dir := range []string{"etc/NetworkManager/system-connections", "run/NetworkManager/system-connections"} {
		files, _ := filepath.Glob(filepath.Join(root, dir, "*"))
		for _, f := range files {
			text, _ := os.ReadFile(f)
			if value(string(text), "uuid") == uuid {
				return value(string(text), "metered") == "1"
			}
		}
	}
	return false
}

// value is a key's in a key file.
func value(text, key string) string {
	for line := range strings.Lines(text) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), "="); ok && k == key {
			return v
		}
	}
	return ""
}
