package api

import "net/url"

// Lease is a Lease of coordination.k8s.io/v1.
type Lease struct {
	Type
	Meta Meta      `json:"metadata"`
	Spec LeaseSpec `json:"spec"`
}

// LeaseSpec says who holds the Lease.
type LeaseSpec struct {
	HolderIdentity       string `json:"holderIdentity"`
	LeaseDurationSeconds int    `json:"leaseDurationSeconds"`
	AcquireTime          string `json:"acquireTime,omitempty"`
	RenewTime            string `json:"renewTime,omitempty"` // for people: no clock is compared with it
	LeaseTransitions     int    `json:"leaseTransitions"`
}

// LeasePath is the URL path of a Lease, or of the namespace's where name is "".
func LeasePath(namespace, name string) string {
	p := "/apis/coordination.k8s.io/v1/namespaces/" + url.PathEscape(namespace) + "/leases"
	if name != "" {
		p += "/" + url.PathEscape(name)
	}
	return p
}
