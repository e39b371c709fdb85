package rtnetlink

import (
	"errors"

	"edgemesh/agent/host/plan"
)

var (
	// ErrNoTUN means that the TUN does not exist yet. Everything that does not
	// need it was set: pods of this node reach each other, and blackhole
	// routes drop packets for the rest of the cluster's ranges.
	ErrNoTUN = errors.New("the TUN " + plan.TUNName + " does not exist; the agent has to open it first")
	// ErrNameTaken means that a foreign interface has one of our names.
	ErrNameTaken = errors.New("an interface of another program has this name; rename or delete it (ip link delete)")
	// ErrTableTaken means that foreign routes were in one of our routing tables
	// before us.
	ErrTableTaken = errors.New("another program uses this routing table; move its routes to another number")
	// ErrPodsLeft means that the bridge cannot be removed: pods are attached to it.
	ErrPodsLeft = errors.New("pods of our own plugin still run on " + plan.BridgeName +
		"; drain the node before cniMode: keep, or set cniMode: own")
)
