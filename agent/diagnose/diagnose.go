// Package diagnose judges what an agent has measured: it turns numbers into findings with a cause and a remedy. It queries
// nothing and keeps nothing.
//
//	diagnose.go  nothing else
//	network.go   clock, UDP, proxy, MTU
//	pods.go      addresses that are left for pods
//	refusals.go  who was refused
//	nodeip.go    the addresses that kubelet reports
//	notices.go   what is worth an event in Kubernetes
package diagnose
