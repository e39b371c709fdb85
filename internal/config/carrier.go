package config

import (
	"cmp"

	"edgemesh/internal/membership/mesh"
)

// Carrier is the `carrier` key: what carries the lanes of the tunnel.
type Carrier struct {
	// Sealed is auto or off: whether sealed packets with repair do; "" = as the membership has it.
	Sealed mesh.Sealed `json:"sealed"`
}

// UsesSealed reports whether sealed packets with repair may carry the lanes, as the membership has it or, first, the file. They may where
// neither says.
func (c Carrier) UsesSealed(s mesh.Carrier) bool {
	return cmp.Or(c.Sealed, s.Sealed) != mesh.SealedOff
}
