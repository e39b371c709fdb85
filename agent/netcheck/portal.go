package netcheck

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"

	"edgemesh/agent/findings"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/wording"
)

// mostPage bounds how much of a page is read, in bytes.
const mostPage = 16 << 10

// leads is where a page sends a browser: by a refresh, or as WISPr 1.0 has it.
var leads = regexp.MustCompile(`(?i)(?:http-equiv=["']?refresh["']?[^>]*url=["']?|<LoginURL>)(https?://[^"'<> ]+)`) //nolint:gochecknoglobals // a constant

// portal requests a page of the relay's host, whose port 80 a captive portal answers for, and returns the host of the portal's page,
// "" for none.
func (k *checker) portal(ctx context.Context, r mesh.Relay) string {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	for _, t := range targets(r.Addrs) {
		if u, err := k.Proxy.For(t.address()); t.kind == udp || err != nil || u != nil {
			continue
		}
		t.port, t.tls, t.path = "80", false, ""
		if host := k.page(ctx, t); host != "" {
			return host
		}
		return "" // the others are at the same place
	}
	return ""
}

func (k *checker) page(ctx context.Context, t target) string {
	c, tr, u := k.http(t)
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return ""
	}
	resp, err := c.Do(req)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	if to, err := resp.Location(); err == nil && resp.StatusCode/100 == 3 {
		return other(to, t.host)
	}
	if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusNetworkAuthenticationRequired { // RFC 6585, section 6
		return ""
	}
	text, _ := io.ReadAll(io.LimitReader(resp.Body, mostPage))
	if m := leads.FindSubmatch(text); m != nil {
		if to, err := url.Parse(string(m[1])); err == nil {
			return other(to, t.host)
		}
	}
	if resp.StatusCode == http.StatusNetworkAuthenticationRequired {
		return t.host
	}
	return ""
}

// other is the host of a URL that leads away from host.
func other(to *url.URL, host string) string {
	name := to.Hostname()
	if name == host || name == "" || net.ParseIP(name) != nil && net.ParseIP(name).Equal(net.ParseIP(host)) {
		return ""
	}
	return wording.Foreign(to.Host, 255)
}

// Portal judges whether this network's captive portal answers in the relays' place. While one of them answers, it does not.
func Portal(all []Relay) []findings.Finding {
	host := ""
	for _, r := range all {
		if r.TCP.Answered() || r.UDP.Answered() || r.WS.Answered() {
			return nil
		}
		if host == "" {
			host = r.Portal
		}
	}
	if host == "" {
		return nil
	}
	return []findings.Finding{findings.Brokenf("captive-portal", "log in on its page, from this network (http://"+host+"), or have this device's MAC address exempted from it",
		"a captive portal keeps this node from the internet: requests to a relay's host are sent to %s", host)}
}
