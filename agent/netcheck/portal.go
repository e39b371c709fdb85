package netcheck

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"sync"

	"edgemesh/agent/findings"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/wording"
)

// mostPage bounds how much of a page is read, in bytes.
const mostPage = 16 << 10

// leads is where a page sends a browser: by a refresh, by a script, or as WISPr 1.0 has it.
var leads = regexp.MustCompile(`(?i)(?:http-equiv=["']?refresh["']?[^>]*url=["']?|<LoginURL>|location(?:\.href)?\s*=\s*["']|location\.(?:replace|assign)\(\s*["'])(https?://[^"'<> ]+)`) //nolint:gochecknoglobals // a constant

// portal requests a page of the relay's hosts, whose port 80 a captive portal answers for, and returns the host of the portal's page,
// "" for none. It may answer over one IP version alone.
func (k *checker) portal(ctx context.Context, r mesh.Relay) string {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	pages := map[target]bool{}
	for _, t := range byVersion(targets(r.Addrs)) {
		pages[target{kind: tcp, host: t.host, port: "80", v4: t.v4, v6: t.v6}] = true
	}
	found := make(chan string, len(pages))
	var wg sync.WaitGroup
	for t := range pages {
		if u, err := k.Proxy.For(t.address()); err == nil && u == nil {
			wg.Go(func() {
				if host := k.page(ctx, t); host != "" {
					found <- host
					cancel()
				}
			})
		}
	}
	wg.Wait()
	close(found)
	return <-found
}

func (k *checker) page(ctx context.Context, t target) string {
	resp, _, err := k.request(ctx, t, nil)
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
