package portmap

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"time"

	natpmp "github.com/jackpal/go-nat-pmp"
)

// natpmpTime bounds one exchange; the library doubles its waits until then.
const natpmpTime = time.Second

// natPMP speaks NAT-PMP with one router.
type natPMP struct{ c *natpmp.Client }

func newNATPMP(g Gateway) natPMP {
	return natPMP{natpmp.NewClientWithTimeout(g.Router.AsSlice(), natpmpTime)}
}

func (n natPMP) String() string { return "NAT-PMP" }

func (n natPMP) add(_ context.Context, udp bool, internal, want uint16, d time.Duration) (netip.AddrPort, time.Duration, error) {
	ext, err := n.c.GetExternalAddress()
	if err != nil {
		return netip.AddrPort{}, 0, natpmpError(err)
	}
	r, err := n.c.AddPortMapping(protocol(udp), int(internal), int(want), int(d/time.Second))
	if err != nil {
		return netip.AddrPort{}, 0, natpmpError(err)
	}
	return netip.AddrPortFrom(netip.AddrFrom4(ext.ExternalIPAddress), r.MappedExternalPort),
		time.Duration(r.PortMappingLifetimeInSeconds) * time.Second, nil
}

// remove requests a lifetime of 0 (RFC 6886 section 3.4).
func (n natPMP) remove(_ context.Context, udp bool, internal uint16, _ netip.AddrPort) error {
	_, err := n.c.AddPortMapping(protocol(udp), int(internal), 0, 0)
	return err
}

func natpmpError(err error) error {
	if s := err.Error(); strings.Contains(s, "Timed out") || strings.Contains(s, "refused") {
		return errNotThere
	}
	return errors.New(strings.ToLower(err.Error()))
}
