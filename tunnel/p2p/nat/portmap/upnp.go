package portmap

import (
	"bufio"
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/huin/goupnp"
	"github.com/huin/goupnp/dcps/internetgateway2"
	"github.com/huin/goupnp/soap"
)

const (
	// ssdpWait is how long devices may take to answer (sent to them in whole seconds), ssdpSends how often the search is
	// sent.
	ssdpWait  = 2100 * time.Millisecond
	ssdpSends = 2
	// maxAnswers of the router to a search are read, of at most maxAnswer bytes.
	maxAnswers, maxAnswer = 32, 2 << 10
	// maxBody bounds a description and an answer of the router in bytes, httpTime the time for a description, soapTime for an
	// answer: slow routers take seconds to map a port.
	maxBody  = 64 << 10
	httpTime = 3 * time.Second
	soapTime = 10 * time.Second
	// maxDevices bounds how many descriptions are read.
	maxDevices = 4
	// description is what routers list the mapping under.
	description = "edgemesh"
	// portTries is how many external ports are tried while others have them.
	portTries = 4
)

// ssdpGroup is where devices are searched.
var ssdpGroup = netip.MustParseAddrPort("239.255.255.250:1900") //nolint:gochecknoglobals // a constant

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

	mu    sync.Mutex // held during a search: one search for all; no other lock is taken meanwhile
	found igd        // nil: not yet
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
	u.found = nil // it may have been restarted elsewhere
	u.mu.Unlock()
	return netip.AddrPort{}, 0, fmt.Errorf("add mapping: %w", err)
}

// addPort requests one port. Some routers keep mappings forever or not at all.
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
	s := u.found
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
	if u.found != nil {
		return u.found, nil
	}
	seen := make(map[string]bool)
	for _, version := range []string{"1", "2"} {
		locations, err := u.search(ctx, ssdpGroup, "urn:schemas-upnp-org:device:InternetGatewayDevice:"+version)
		if err != nil {
			return nil, fmt.Errorf("search: %w", err)
		}
		for _, loc := range locations {
			if seen[loc.String()] || len(seen) == maxDevices {
				continue
			}
			seen[loc.String()] = true
			if s := u.service(ctx, loc); s != nil {
				u.found = s
				return s, nil
			}
		}
	}
	return nil, errNotThere
}

// search returns where the router describes devices of a kind. It reads a bounded number of answers, whoever sends them.
func (u *upnp) search(ctx context.Context, to netip.AddrPort, kind string) ([]*url.URL, error) {
	c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(u.g.Local, 0)))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	request := fmt.Sprintf("M-SEARCH * HTTP/1.1\r\nHOST: %s\r\nMAN: \"ssdp:discover\"\r\nMX: %d\r\nST: %s\r\n\r\n", ssdpGroup, int(ssdpWait.Seconds()), kind)
	for range ssdpSends {
		if _, err := c.WriteToUDPAddrPort([]byte(request), to); err != nil {
			return nil, err
		}
	}
	if err := c.SetReadDeadline(time.Now().Add(ssdpWait)); err != nil {
		return nil, err
	}
	var out []*url.URL
	b := make([]byte, maxAnswer)
	for answers := 0; answers < maxAnswers; {
		n, from, err := c.ReadFromUDPAddrPort(b)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil {
			return nil, err
		}
		if from.Addr() != u.g.Router {
			continue
		}
		answers++
		a, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(b[:n])), nil)
		if err != nil || a.Header.Get("ST") != kind {
			continue
		}
		if loc, err := a.Location(); err == nil && u.routers(loc) {
			out = append(out, loc)
		}
	}
	return out, nil
}

// routers reports whether u leads to the router itself.
func (u *upnp) routers(loc *url.URL) bool {
	ip, err := netip.ParseAddr(loc.Hostname())
	return err == nil && ip == u.g.Router && loc.Scheme == "http"
}

// client speaks to the router alone, whatever a description, a control URL or a redirect says, never through a proxy, and reads
// little.
func (u *upnp) client() http.Client {
	dialer := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(u.g.Local, 0))}
	return http.Client{
		Timeout:       httpTime,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: brief{&http.Transport{DisableKeepAlives: true, MaxResponseHeaderBytes: maxBody,
			DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
				if at, err := netip.ParseAddrPort(addr); err != nil || at.Addr() != u.g.Router {
					return nil, fmt.Errorf("%s is not the router %s", addr, u.g.Router)
				}
				return dialer.DialContext(ctx, network, addr)
			}}},
	}
}

// brief cuts answers off.
type brief struct{ *http.Transport }

// RoundTrip implements http.RoundTripper.
func (b brief) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := b.Transport.RoundTrip(r)
	if err == nil {
		resp.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(resp.Body, maxBody), resp.Body}
	}
	return resp, err
}

// service returns the service of a described device that maps ports, nil if it has none.
func (u *upnp) service(ctx context.Context, loc *url.URL) igd {
	client := u.client()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, loc.String(), nil)
	if err != nil {
		return nil
	}
	resp, err := client.Do(r)
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	d := xml.NewDecoder(resp.Body)
	d.DefaultSpace, d.CharsetReader = goupnp.DeviceXMLNamespace, goupnp.CharsetReaderDefault
	var root goupnp.RootDevice
	if resp.StatusCode != http.StatusOK || d.Decode(&root) != nil {
		return nil
	}
	base := loc
	if b, err := url.Parse(root.URLBaseStr); err == nil && root.URLBaseStr != "" {
		base = b
	}
	root.SetURLBase(base)
	client.Timeout = soapTime
	if c, err := internetgateway2.NewWANIPConnection2ClientsFromRootDevice(&root, loc); err == nil && len(c) > 0 {
		c[0].SOAPClient.HTTPClient = client
		return c[0]
	}
	if c, err := internetgateway2.NewWANIPConnection1ClientsFromRootDevice(&root, loc); err == nil && len(c) > 0 {
		c[0].SOAPClient.HTTPClient = client
		return c[0]
	}
	if c, err := internetgateway2.NewWANPPPConnection1ClientsFromRootDevice(&root, loc); err == nil && len(c) > 0 {
		c[0].SOAPClient.HTTPClient = client
		return c[0]
	}
	return nil
}
