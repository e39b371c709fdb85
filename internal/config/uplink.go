package config

import (
	"fmt"

	"edgemesh/internal/membership/mesh"
)

// Metered says whether each byte on a node's uplink is paid for.
type Metered string

const (
	// MeteredAuto finds out from the interface. It is the default.
	MeteredAuto Metered = "auto"
	MeteredYes  Metered = "true"
	MeteredNo   Metered = "false"
)

// Uplink is the `uplink` key: what this node's connection to the internet is like.
type Uplink struct{ Metered Metered }

// uplinkDocument is the key as written: YAML takes true and false for booleans, unless they are quoted.
type uplinkDocument struct {
	Metered any `json:"metered"`
}

func (d uplinkDocument) check(bad *mesh.Invalid) Uplink {
	u := Uplink{MeteredAuto}
	if d.Metered != nil {
		u.Metered = Metered(fmt.Sprint(d.Metered))
	}
	if u.Metered != MeteredAuto && u.Metered != MeteredYes && u.Metered != MeteredNo {
		bad.Addf("uplink.metered", "%q is not one of auto, true and false", string(u.Metered))
	}
	return u
}
