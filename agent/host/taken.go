package host

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"edgemesh/cni/conf"
)

// bridgeAlias tells our bridge from another program's of the same name, also when its
// MAC was changed.
const bridgeAlias = "edgemesh"

// diffTaken looks for what other programs have under our names and numbers. It comes
// before everything else, and only until a Set went through: a host on which
// something is taken is left exactly as it is. What others put beside ours later is
// drift, which the other parts repair.
func (h *Host) diffTaken(fs families) ([]change, error) {
	if h.settled {
		return nil, nil
	}
	_, err := findBridge()
	errs := []error{err}
	for _, f := range fs.held() {
		tables, err := takenTables(f.id())
		if err == nil && len(tables) > 0 {
			err = fmt.Errorf("%w: %s", ErrTableTaken, strings.Join(tables.text(), "; "))
		}
		errs = append(errs, err)
	}
	_, err = findLink(TUNName, "tuntap")
	return nil, errors.Join(append(errs, err, takenNFT(fs))...)
}

// takenNFT looks for nftables tables of others under the names that fs needs.
func takenNFT(fs families) error {
	var names []string
	if fs.guard().wanted() {
		names = append(names, guardTable)
	}
	if len(fs.snat().families) > 0 && missingNFT() == "" {
		names = append(names, snatTable)
	}
	var errs []error
	for _, name := range names {
		c, err := nftables.New()
		if err != nil {
			return fmt.Errorf("nftables: %w", err)
		}
		t, err := findTable(c, name)
		if err == nil && t != nil && !oursNFT(c, t) {
			err = fmt.Errorf("nftables table inet %s is not ours: %w", name, ErrNFTTaken)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// findBridge is findLink for our bridge: one that another program made is
// ErrNameTaken, too.
func findBridge() (netlink.Link, error) {
	link, err := findLink(BridgeName, "bridge")
	if link == nil || err != nil {
		return nil, err
	}
	a := link.Attrs()
	if a.Alias != bridgeAlias && !bytes.Equal(a.HardwareAddr, conf.BridgeMAC(BridgeName)) {
		return nil, fmt.Errorf("%s is a bridge with MAC %s, which is not ours: %w", BridgeName, a.HardwareAddr, ErrNameTaken)
	}
	return link, nil
}

// taken maps routing tables of our numbers that another program uses to what it has
// there, as text.
type taken map[int]string

func (t taken) text() []string {
	var out []string
	for table, what := range t {
		out = append(out, fmt.Sprintf("table %d has %s", table, what))
	}
	slices.Sort(out)
	return out
}

// takenTables lists tables of our numbers that have routes or rules of others and
// none of ours: in a table where ours are, others came later.
func takenTables(familyID int) (taken, error) {
	routes, err := listTables(familyID)
	if err != nil {
		return nil, err
	}
	rules, err := ourRules(familyID)
	if err != nil {
		return nil, err
	}
	ours, out := map[int]bool{}, taken{}
	for _, r := range rules {
		if r.Protocol == RouteProtocol {
			ours[r.Table] = true
		} else {
			out[r.Table] = fmt.Sprintf("the rule %d: lookup %d", r.Priority, r.Table)
		}
	}
	for _, r := range routes {
		if r.Protocol == RouteProtocol {
			ours[r.Table] = true
		} else {
			out[r.Table] = "the route " + routeText(r)
		}
	}
	for table := range ours {
		delete(out, table)
	}
	return out, nil
}

func routeText(r netlink.Route) string {
	if r.Dst == nil || prefixOf(r.Dst).Bits() == 0 {
		return "default"
	}
	return r.Dst.String()
}

// deleteBridge removes the bridge if it is ours.
func deleteBridge() error {
	link, err := findBridge()
	if errors.Is(err, ErrNameTaken) || link == nil {
		return ignoreTaken(err)
	}
	return ignore(netlink.LinkDel(link), unix.ENODEV)
}

// ignoreTaken returns nil for what belongs to another program: cleaning up leaves it.
func ignoreTaken(err error) error {
	if errors.Is(err, ErrNameTaken) {
		return nil
	}
	return err
}
