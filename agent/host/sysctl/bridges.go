package sysctl

import "errors"

// bridges are br_netfilter's switches for all bridges of a network namespace. A bridge has two of its own beside them.
var bridges = []string{"net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables", "net/bridge/bridge-nf-call-arptables"} //nolint:gochecknoglobals // a constant

// BridgeFilter reports whether br_netfilter is loaded.
func BridgeFilter() bool {
	_, err := Read(bridges[0])
	return err == nil
}

// LoadBridgeFilter calls load, which loads br_netfilter. That module starts with its switches on, for the bridges of other
// programs, too, whose frames no rule has met until then: they are switched off again.
func LoadBridgeFilter(load func() error) error {
	if BridgeFilter() {
		return nil
	}
	errs := []error{load()}
	for _, key := range bridges {
		if v, err := Read(key); err == nil && v != "0" {
			errs = append(errs, write(key, "0"))
		}
	}
	return errors.Join(errs...)
}
