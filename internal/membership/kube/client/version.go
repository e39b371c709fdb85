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

// TooOld says that a version is older than MinVersion, and why that matters; nil if it is not, or cannot be read.
func TooOld(v string) error {
	have, err := version.ParseGeneric(v)
	if err != nil || have.AtLeast(version.MustParseGeneric(MinVersion)) {
		return nil
	}
	return fmt.Errorf("%w: the API server is %s, EdgeMesh needs %s or later. Before that nothing keeps one node from writing another's objects "+
		"(no ValidatingAdmissionPolicy, no conditions of webhooks): upgrade the cluster, or use a membership file (membership.file)", ErrTooOld, v, MinVersion)
}

// Unguarded says that an API server of that version keeps no node from writing another's objects by itself: it has no
// ValidatingAdmissionPolicies.
func Unguarded(v string) bool {
	have, err := version.ParseGeneric(v)
	return err == nil && have.LessThan(version.MustParseGeneric("1.30.0"))
}
