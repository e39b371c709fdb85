package main

import (
	"fmt"

	current "github.com/containernetworking/cni/pkg/types/100"
	cniversion "github.com/containernetworking/cni/pkg/version"

	"edgemesh/cni/conf"
)

// earlierResult is the result of the plugins before this one in the list, or nil.
func (c *call) earlierResult() (*current.Result, error) {
	if err := cniversion.ParsePrevResult(&c.PluginConf); err != nil {
		return nil, fmt.Errorf("%w: prevResult: %w", conf.ErrNetConf, err)
	}
	if c.PrevResult == nil {
		return nil, nil
	}
	prev, err := current.NewResultFromResult(c.PrevResult)
	if err != nil {
		return nil, fmt.Errorf("%w: prevResult: %w", conf.ErrNetConf, err)
	}
	return prev, nil
}

// prevResult is the result of ADD, which a runtime must pass to CHECK.
func (c *call) prevResult() (*current.Result, error) {
	prev, err := c.earlierResult()
	if err == nil && prev == nil {
		err = fmt.Errorf("%w: prevResult: missing", conf.ErrNetConf)
	}
	return prev, err
}

// chained is r with the earlier result in front, as the specification requires of every
// plugin in a list. If r has DNS settings, they replace the earlier ones.
func chained(prev, r *current.Result) *current.Result {
	if prev == nil {
		return r
	}
	for _, ip := range r.IPs {
		ip.Interface = current.Int(*ip.Interface + len(prev.Interfaces))
	}
	r.Interfaces = append(prev.Interfaces, r.Interfaces...)
	r.IPs = append(prev.IPs, r.IPs...)
	r.Routes = append(prev.Routes, r.Routes...)
	if r.DNS.IsEmpty() {
		r.DNS = prev.DNS
	}
	return r
}
