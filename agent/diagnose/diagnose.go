// Package diagnose judges what an agent has measured: it turns numbers into findings with a cause and a remedy. It queries
// nothing and keeps nothing.
//
//	diagnose.go  the order of findings, and what they come to
//	network.go   clock, UDP, proxy, MTU
//	pods.go      addresses that are left for pods
//	refusals.go  who was refused
//	nodeip.go    the addresses that kubelet reports
//	notices.go   what is worth an event in Kubernetes
package diagnose

import (
	"slices"

	"edgemesh/agent/control"
)

// Ordered puts what is broken first, then warnings, then what is well. Within each the order stays: who checks begins with
// what others depend on, so the first finding is the cause.
func Ordered(all []control.Finding) []control.Finding {
	rank := map[control.Severity]int{control.Broken: 0, control.Warning: 1, control.OK: 2}
	out := slices.Clone(all)
	slices.SortStableFunc(out, func(a, b control.Finding) int { return rank[a.Severity] - rank[b.Severity] })
	return out
}
