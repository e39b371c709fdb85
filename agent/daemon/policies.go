package daemon

import (
	"edgemesh/agent/host/nft"
	"edgemesh/agent/host/sysctl"
	"edgemesh/agent/policies"
	"edgemesh/internal/config"
	"edgemesh/internal/membership/mesh"
)

// policyKernel is where policies are enforced.
type policyKernel struct{ *nft.Policies }

// Partly says what passes the kernel's rules.
func (policyKernel) Partly() string {
	if sysctl.BridgeFilter() {
		return ""
	}
	return "without the kernel module br_netfilter pods of one node reach each other past every rule (modprobe br_netfilter)"
}

// setPolicies says what the membership says of policies.
func setPolicies(o *policies.Owner, s mesh.State, c config.Config) {
	off := s.NetworkPolicy == mesh.PolicyOff
	if file := c.Membership.File != ""; file || off {
		o.SetOff(off)
		if file {
			o.SetFile(s.PolicyFile)
		}
	}
}
