package client

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/util/version"
)

// MinVersion is the oldest Kubernetes that EdgeMesh is for. test/manifests holds the chart's and the scripts' to it.
const MinVersion = "1.28.0"

// ErrTooOld means that the API server is older than MinVersion.
var ErrTooOld = errors.New("this Kubernetes is too old")

// TooOld says that a version is older than MinVersion; nil if it is not, or cannot be read.
func TooOld(v string) error {
	have, err := version.ParseGeneric(v)
	if err != nil || have.AtLeast(version.MustParseGeneric(MinVersion)) {
		return nil
	}
	return fmt.Errorf("%w: the API server is %s, EdgeMesh needs %s or later: "+
		"upgrade the cluster, or use a membership file (membership.file)", ErrTooOld, v, MinVersion)
}

// Unguarded says that an API server of that version keeps no node from writing another's objects, since it has no
// ValidatingAdmissionPolicies, and what to do; nil if it has them, or its version cannot be read.
func Unguarded(v string) error {
	have, err := version.ParseGeneric(v)
	if err != nil || have.AtLeast(version.MustParseGeneric("1.30.0")) {
		return nil
	}
	return fmt.Errorf("on Kubernetes %s any node can write the others' peer IDs and take their traffic: upgrade to 1.30 or later, or say that every node is trusted with "+
		"that: kubectl patch podnetwork cluster --type=merge -p '{\"spec\":{\"trustedNodes\":true}}'", v)
}
