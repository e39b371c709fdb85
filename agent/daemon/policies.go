package daemon

import (
	"context"
	"log/slog"

	"edgemesh/agent/findings"
	"edgemesh/agent/host"
	"edgemesh/agent/host/nft"
	"edgemesh/agent/host/rtnetlink"
	policy "edgemesh/agent/policy/compile"
	"edgemesh/agent/policy/enforce"
	"edgemesh/agent/policy/read"
	"edgemesh/internal/config"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/membership/source"
)

// policyKernel is where policies are enforced.
type policyKernel struct{ *nft.Policies }

// Partly says what passes the kernel's rules.
func (policyKernel) Partly() string {
	if host.BridgeFiltered() {
		return ""
	}
	return "without the kernel module br_netfilter pods of one node reach each other past every rule (modprobe br_netfilter)"
}

// newPolicies enforces policies, those that are saved first.
func newPolicies(c config.Config, dataDir string, from source.Source, log *slog.Logger) *enforce.Owner {
	return enforce.New(enforce.Config{StateDir: c.StateDir, RuntimeDir: c.RuntimeDir, DataDir: dataDir, Kernel: policyKernel{nft.NewPolicies(log)}, Ports: rtnetlink.PodAddrs,
		Others: rtnetlink.ShutOthers, Warn: from.Warn, Log: log.With("part", "policy")})
}

// compiler compiles the policies of one source for the Owner.
type compiler interface {
	First(s mesh.State) policy.Rules // of a node that has never run; without a map of namespaces nothing is to be closed
	SetState(s mesh.State)
	Run(ctx context.Context)
	Findings() []findings.Finding
}

// policiesOf compiles the policies of the API, or of a file, for o; nil: another plugin has the pods, whose addresses may be those of records
// from before.
func policiesOf(c config.Config, o *enforce.Owner, from source.Source, log *slog.Logger) compiler {
	with := read.Config{Node: c.NodeName, Follow: from.Follow, Has: from.Has, Local: o.Local, Set: o.Set, SetOff: o.SetOff, InForce: o.Given, Log: log}
	switch {
	case c.CNIMode == config.CNIKeep:
		o.SetOff(true)
		return nil
	case c.Membership.Kubernetes == nil:
		f := read.NewFile(with)
		o.OnPods(f.PodsChanged)
		return f
	}
	l := read.New(with)
	o.OnPods(l.PodsChanged)
	return l
}

// expectPolicies closes pods of a node that has never run until policies are known: pods wait for subnet.json, and would be made before.
func (k *kernel) expectPolicies(s mesh.State) {
	if k.compiler == nil {
		return
	}
	if rules := k.compiler.First(s); rules.Namespaces != nil {
		k.policies.Expect(rules)
	}
}

// setPolicies says what the membership says of policies.
func (k *kernel) setPolicies(s mesh.State) {
	if k.compiler != nil {
		k.compiler.SetState(s)
	}
}

// checkPolicies is what is wrong with policies.
func (k *kernel) checkPolicies() []findings.Finding {
	out := k.policies.Findings()
	if k.compiler != nil {
		out = append(out, k.compiler.Findings()...)
	}
	return out
}
