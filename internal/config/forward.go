package config

import (
	"encoding/json"
	"fmt"
	"net/netip"

	"edgemesh/internal/membership/mesh"
)

// kubeletPort is where an API server fetches logs and opens sessions of kubelets.
var kubeletPort = mesh.HostPort{Port: 10250, Proto: "tcp"}

// forwardDocument is the key `forward` as written: machines outside of the pod network that this node forwards into it, and
// whether it routes between its uplinks. The text "all" stands for {uplinks: all}.
type forwardDocument struct {
	From    []string `json:"from"`
	Ports   []string `json:"ports"`   // default kubelet's
	Uplinks string   `json:"uplinks"` // all, or "" for none that this host did not route between before
}

const forwardAll = "all"

// UnmarshalJSON reads the mapping or the text.
func (d *forwardDocument) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		*d = forwardDocument{}
		return json.Unmarshal(b, &d.Uplinks) //nolint:wrapcheck // json's own
	}
	type plain forwardDocument            // without this method
	return json.Unmarshal(b, (*plain)(d)) //nolint:wrapcheck // json's own
}

// check is what d means.
func (d forwardDocument) check(bad *mesh.Invalid) (out mesh.Forward) {
	switch d.Uplinks {
	case "":
	case forwardAll:
		out.All = true
	default:
		bad.Addf("forward", "%q is not all; leave it out, or write {from: [PREFIX…]} for machines whose packets this node forwards into the pod network", d.Uplinks)
	}
	for i, text := range d.From {
		p, err := netip.ParsePrefix(text)
		switch {
		case err != nil || p != p.Masked() || p.Addr().Is4In6():
			bad.Addf(fmt.Sprintf("forward.from[%d]", i), "%q is not a prefix, like 172.31.0.0/20 or 172.31.0.7/32", text)
		case p.Bits() == 0:
			bad.Addf(fmt.Sprintf("forward.from[%d]", i), "%s is everyone; name the addresses of the API servers", text)
		default:
			out.From = append(out.From, p)
		}
	}
	for i, text := range d.Ports {
		p, err := mesh.ParseHostPort(text)
		if err != nil {
			bad.Addf(fmt.Sprintf("forward.ports[%d]", i), "%v", err)
		}
		out.Ports = append(out.Ports, p)
	}
	switch {
	case len(d.From) > 0 && len(d.Ports) == 0:
		out.Ports = []mesh.HostPort{kubeletPort}
	case len(d.From) == 0 && len(d.Ports) > 0:
		bad.Addf("forward.from", "missing; name the addresses that forward.ports is for")
	}
	return out
}
