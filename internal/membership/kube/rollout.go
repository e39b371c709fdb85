package kube

import (
	"context"
	"errors"
	"fmt"
	"time"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/client"
)

// ErrRolloutStopped means that an agent that stands by must not take over.
var ErrRolloutStopped = errors.New("the rollout is stopped")

// rolloutTimeout is how long the API may take to answer.
const rolloutTimeout = 2 * time.Second

// Rollout is one revision of the DaemonSet's pods.
type Rollout struct {
	c        *client.Client
	revision string
}

// NewRollout returns the rollout of revision, as the API behind c knows it. c's owner closes it.
func NewRollout(c *client.Client, revision string) Rollout { return Rollout{client.Brief(c), revision} }

// Stopped returns an error that wraps ErrRolloutStopped if agents of this revision crash after they took over, as the controller
// says in the PodNetwork's status. An API that does not answer stops nothing.
func (r Rollout) Stopped(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, rolloutTimeout)
	defer cancel()
	var n api.PodNetwork
	if err := r.c.Get(ctx, api.PodNetworks().Path(api.NetworkName), &n); err != nil {
		return nil
	}
	for _, f := range n.Status.Failing {
		if f.Revision == r.revision {
			return fmt.Errorf("%w: of this revision (%s) the agent on node %s ended after it took over, with %s. The agent that runs here stays;"+
				" fix the cause there, or roll back: kubectl -n NAMESPACE rollout undo daemonset/edgemesh-agent", ErrRolloutStopped, f.Revision, f.Node, f.Message)
		}
	}
	return nil
}
