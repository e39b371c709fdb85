package kube

import (
	"errors"

	"edgemesh/internal/membership/kube/client"
)

var (
	// ErrConfig is what the operator has to fix: no way to find the API, a bad node name.
	ErrConfig = client.ErrConfig
	// ErrNotMember means that the API does not list this node, or no longer does: its Node
	// was deleted, or the API's data was lost.
	ErrNotMember = errors.New("this node is not in the API")
	// ErrNotAdmitted means that this node's Node lacks the label that the PodNetwork requires.
	ErrNotAdmitted = errors.New("its Node lacks the label")
	// ErrPeerID means that the API binds this node's name to another key.
	ErrPeerID = errors.New("the API has another peer ID for this node")
	// ErrExhausted means that no free block is left in the PodNetwork.
	ErrExhausted = errors.New("no free pod block")

	// errUnproved is an answer that is well-formed but may be stale.
	errUnproved = errors.New("the answer is not proved to be current")
	// errLied is a write that was acknowledged and is not there.
	errLied = errors.New("acknowledged, but not stored")
	// errGone requires a new list: the server does not have the history since the
	// last one (HTTP 410), or has another history.
	errGone = errors.New("resource version is gone")
)
