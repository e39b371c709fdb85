package bundle

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"edgemesh/internal/endpoint"
)

// patience bounds each program and query.
const patience = 5 * time.Second

// Host adds what the kernel routes and filters, and the end of the unit's log; programs that this host does not have are left
// out.
func (b *Bundle) Host(ctx context.Context) {
	b.Text("host/rules", lines(netlink.RuleList(netlink.FAMILY_ALL)))
	// Table 0 with this filter is all tables.
	b.Text("host/routes", lines(netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{}, netlink.RT_FILTER_TABLE)))
	for name, command := range map[string]string{"nftables": "nft list ruleset", "iptables": "iptables-save -c", "ip6tables": "ip6tables-save -c",
		"log": "journalctl --no-pager -o short-iso -n 2000 -u edgemesh-agent"} {
		b.program(ctx, "host/"+name, strings.Fields(command))
	}
}

// lines has a line for each of some objects of the kernel.
func lines[T fmt.Stringer](all []T, err error) string {
	var out strings.Builder
	for _, x := range all {
		fmt.Fprintln(&out, x)
	}
	if err != nil {
		fmt.Fprintln(&out, err)
	}
	return out.String()
}

func (b *Bundle) program(ctx context.Context, name string, command []string) {
	if _, err := exec.LookPath(command[0]); err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c := exec.CommandContext(ctx, command[0], command[1:]...)
	c.WaitDelay = time.Second
	var out first
	c.Stdout = &out
	if err := c.Run(); err != nil {
		fmt.Fprintf(&out, "%v\n", err)
	}
	b.Text(name, out.String())
}

// first keeps the first maxFile bytes that are written, and drops the rest.
type first struct{ strings.Builder }

func (f *first) Write(p []byte) (int, error) {
	f.Builder.Write(p[:min(len(p), maxFile-f.Len())])
	return len(p), nil
}

// Metrics adds what the agent exports at address, as its configuration has it; "" and an agent that does not run have none.
func (b *Bundle) Metrics(ctx context.Context, address string) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(endpoint.Local(host), port)+"/metrics", nil)
	if err != nil {
		return
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req) // no proxy: it is this host
	if err != nil {
		return
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(io.LimitReader(resp.Body, maxFile)); err == nil {
		b.Text("metrics.txt", string(body))
	}
}
