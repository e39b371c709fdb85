package portmap

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/huin/goupnp"
	"github.com/huin/goupnp/dcps/internetgateway2"
	"github.com/huin/goupnp/httpu"
	"github.com/huin/goupnp/soap"
	"github.com/huin/goupnp/ssdp"
)

const (
	// ssdpWait is how long devices may take to answer (sent to them in whole seconds), ssdpSends how often the search is
	// sent.
	ssdpWait  = 2100 * time.Millisecond
	ssdpSends = 2
	// maxDevices bounds how many descriptions are read.
	maxDevices = 4
	// description is what routers list the mapping under.
	description = "edgemesh"
	// portTries is how many external ports are tried while others have them.
	portTries = 4
)

// Errors of UPnP-IGD, WANIPConnection:1 section 2.4.16.
const (
	onlyPermanent = 725
	conflict      = 718
)

// igd is what a router's services that map ports have in common.
type igd interface {
	AddPortMappingCtx(ctx context.Context, remoteHost string, externalPort uint16, protocol string, internalPort uint16,
		internalClient string, enabled bool, description string, leaseSeconds uint32) error
	DeletePortMappingCtx(ctx context.Context, remoteHost string, externalPort uint16, protocol string) error
	GetExternalIPAddressCtx(ctx context.Context) (string, error)
}

// upnp speaks UPnP-IGD with one router. Many home routers speak nothing else: two nodes behind symmetric NATs, one of them
// with UPnP, have a direct path 4.7 s after their start (PCP: 1.0 s), and stay relayed without it: 2 in place of 6 Gbit/s.
type upnp struct {
	g Gateway

	mu      sync.Mutex // held during a search: one search for all; no other lock is taken meanwhile
	service igd        // nil: not found yet
}

func newUPnP(g Gateway) *upnp { return &upnp{g: g} }

func (u *upnp) String() string { return "UPnP" }

func (u *upnp) add(ctx context.Context, udp bool, internal, want uint16, d time.Duration) (netip.AddrPort, time.Duration, error) {
	s, err := u.find(ctx)
	if err != nil {
		return netip.AddrPort{}, 0, err
	}
	text, err := s.GetExternalIPAddressCtx(ctx)
	if err != nil {
		return netip.AddrPort{}, 0, fmt.Errorf("external address: %w", err)
	}
	ip, err := netip.ParseAddr(text)
	if err != nil {
		return netip.AddrPort{}, 0, fmt.Errorf("external address %q: %w", text, err)
	}
	for i := range uint16(portTries) {
		port := want + i*1009 // far from what a neighbour is likely to have
		if port < 1024 {
			port += 1024
		}
		granted, e := u.addPort(ctx, s, udp, internal, port, d)
		if e == nil {
			return netip.AddrPortFrom(ip, port), granted, nil
		}
		if err = e; code(e) != conflict {
			break
		}
	}
	u.mu.Lock()
	u.service = nil // it may have been restarted elsewhere
	u.mu.Unlock()
	return netip.AddrPort{}, 0, fmt.Errorf("add mapping: %w", err)
}

// addPort asks for one port. Some routers keep mappings forever or not at all.
func (u *upnp) addPort(ctx context.Context, s igd, udp bool, internal, external uint16, d time.Duration) (time.Duration, error) {
	add := func(d time.Duration) error {
		return s.AddPortMappingCtx(ctx, "", external, strings.ToUpper(protocol(udp)), internal, u.g.Local.String(), true, description, uint32(d/time.Second))
	}
	err := add(d)
	if code(err) == onlyPermanent {
		err = add(0)
	}
	return d, err
}

func (u *upnp) remove(ctx context.Context, udp bool, _ uint16, external netip.AddrPort) error {
	u.mu.Lock()
	s := u.service
	u.mu.Unlock()
	if s == nil {
		return errNotThere
	}
	return s.DeletePortMappingCtx(ctx, "", external.Port(), strings.ToUpper(protocol(udp)))
}

// code is the UPnP error code of err; 0 if it has none.
func code(err error) int {
	var fault *soap.SOAPFaultError
	if errors.As(err, &fault) {
		return fault.Detail.UPnPError.Errorcode
	}
	return 0
}

// find searches the router's service. Only what the router itself describes counts: anybody on the LAN may answer.
func (u *upnp) find(ctx context.Context) (igd, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.service != nil {
		return u.service, nil
	}
	client, err := httpu.NewHTTPUClientAddr(u.g.Local.String())
	if err != nil {
		return nil, fmt.Errorf("search: %w", err)
	}
	defer client.Close()
	seen := make(map[string]bool)
	for _, target := range []string{"urn:schemas-upnp-org:device:InternetGatewayDevice:1", "urn:schemas-upnp-org:device:InternetGatewayDevice:2"} {
		sctx, cancel := context.WithTimeout(ctx, ssdpWait)
		answers, err := ssdp.RawSearch(sctx, client, target, ssdpSends)
		cancel()
		if err != nil {
			return nil, fmt.Errorf("search: %w", err)
		}
		for _, loc := range u.locations(answers) {
			if seen[loc.String()] || len(seen) == maxDevices {
				continue
			}
			seen[loc.String()] = true
			if s := service(ctx, loc); s != nil {
				u.service = s
				return s, nil
			}
		}
	}
	return nil, errNotThere
}

// locations returns where the router describes itself.
func (u *upnp) locations(answers []*http.Response) []*url.URL {
	var out []*url.URL
	for _, a := range answers {
		loc, err := a.Location()
		if err != nil || loc.Scheme != "http" {
			continue
		}
		if ip, err := netip.ParseAddr(loc.Hostname()); err == nil && ip == u.g.Router {
			out = append(out, loc)
		}
	}
	return out
}

// service returns the service of a described device that maps ports, nil if it has none.
func service(ctx context.Context, loc *url.URL) igd {
	root, err := goupnp.DeviceByURLCtx(ctx, loc)
	if err != nil {
		return nil
	}
	if c, err := internetgateway2.NewWANIPConnection2ClientsFromRootDevice(root, loc); err == nil && len(c) > 0 {
		return c[0]
	}
	if c, err := internetgateway2.NewWANIPConnection1ClientsFromRootDevice(root, loc); err == nil && len(c) > 0 {
		return c[0]
	}
	if c, err := internetgateway2.NewWANPPPConnection1ClientsFromRootDevice(root, loc); err == nil && len(c) > 0 {
		return c[0]
	}
	return nil
}
