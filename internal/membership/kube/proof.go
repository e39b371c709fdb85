package kube

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/url"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/wake"
)

// requestTimeout bounds one request. An edge cache that has not yet noticed
// that its uplink is down answers after 10 s.
const requestTimeout = 25 * time.Second

// gather is how long a caller waits for others that need a proof as well. At a start every kind's list has one before and
// one after it: with many agents most requests of a start.
const gather = 50 * time.Millisecond

// forbiddenFor is how long a dry run is not tried again that was forbidden: through MetaServer all edges may only read.
const forbiddenFor = time.Hour

// prover obtains proofs, one at a time; callers that wait share the next one.
type prover struct {
	c        *client.Client
	node     string
	readOnly bool
	gather   time.Duration // how long to wait for other callers

	mu    sync.Mutex // held during the request; a leaf: nothing else is locked under it
	began time.Time  // of last
	last  proof
	err   error
	of    struct{ ownUID, cluster string } // the cluster that the MeshNode of this UID is in

	forbidden time.Time // when a dry run was
}

// prove returns a proof that was begun after the call. The error wraps
// errUnproved when the answer was well-formed but proves nothing.
func (p *prover) prove(ctx context.Context) (proof, error) {
	called := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.began.After(called) {
		return p.last, p.err
	}
	if !wake.Sleep(ctx, p.gather) {
		return proof{}, ctx.Err()
	}
	began := time.Now()
	last, err := p.request(ctx)
	if ctx.Err() != nil {
		return last, ctx.Err() // another caller's context may still be good
	}
	p.began, p.last, p.err = began, last, err
	return last, err
}

func (p *prover) request(ctx context.Context) (proof, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var out proof
	var err error
	fresh := false // ownUID is an API server's word, not a cache's
	switch {
	case p.readOnly:
		err = p.review(ctx)
	case time.Since(p.forbidden) < forbiddenFor:
		out.ownUID, err = p.reviewed(ctx)
	default:
		out.ownUID, err = p.dryRun(ctx)
		if fresh = err == nil; apierrors.IsForbidden(err) && p.c.Plain() {
			p.forbidden = time.Now()
			out.ownUID, err = p.reviewed(ctx)
		}
	}
	if err != nil {
		return proof{}, fmt.Errorf("prove that an API server answers: %w", err)
	}
	if out.cluster, err = p.cluster(ctx, fresh, out.ownUID); err != nil {
		return proof{}, err
	}
	_, rv, err := list(ctx, p.c, api.PodNetworks())
	if err != nil {
		return proof{}, err
	}
	if out.version = version(rv); out.version == 0 {
		return proof{}, fmt.Errorf("list podnetworks: no resource version: %w", errUnproved)
	}
	return out, nil
}

// cluster returns the cluster's identity. It is read once for a MeshNode: an API server that has that object, by its UID, is the
// same cluster's, or one with its data.
func (p *prover) cluster(ctx context.Context, fresh bool, ownUID string) (string, error) {
	if fresh && ownUID == p.of.ownUID {
		return p.of.cluster, nil
	}
	var ns struct {
		Meta api.Meta `json:"metadata"`
	}
	if err := p.c.Get(ctx, "/api/v1/namespaces/kube-system", &ns); err != nil {
		return "", fmt.Errorf("read the cluster's identity: %w", err)
	}
	if ns.Meta.UID == "" {
		return "", fmt.Errorf("read the cluster's identity: %w", errUnproved)
	}
	if fresh {
		p.of.ownUID, p.of.cluster = ownUID, ns.Meta.UID
	}
	return ns.Meta.UID, nil
}

// dryRun patches this node's MeshNode in a dry run: the API server reads the stored
// object, authorizes, admits and answers with our nonce in it; no watch reports it. A
// cache cannot do that: it refuses, or returns the old object.
func (p *prover) dryRun(ctx context.Context) (uid string, err error) {
	nonce := rand.Text()
	patch := map[string]any{"metadata": map[string]any{"annotations": map[string]string{api.ProofAnnotation: nonce}}}
	var m api.MeshNode
	err = p.c.Patch(ctx, api.MeshNodes().Path(p.node), client.Merge, url.Values{"dryRun": {"All"}}, patch, &m)
	if err != nil {
		return "", err
	}
	if m.Meta.Annotations[api.ProofAnnotation] != nonce || m.Meta.Name != p.node || m.Meta.UID == "" {
		return "", fmt.Errorf("patch MeshNode %s (dry run): the answer lacks the change: %w", p.node, errUnproved)
	}
	return m.Meta.UID, nil
}

// reviewed is what proves it to a node whose cache may only read: an API server answers, and the UID of this node's MeshNode
// as the cache has it. A stale one fits no list.
func (p *prover) reviewed(ctx context.Context) (uid string, err error) {
	if err := p.review(ctx); err != nil {
		return "", err
	}
	var m api.MeshNode
	if err := p.c.Get(ctx, api.MeshNodes().Path(p.node), &m); err != nil {
		return "", fmt.Errorf("read this node's MeshNode: %w", err)
	}
	return m.Meta.UID, nil
}

// review requests our own identity: for a reader, the one request that only an API server
// answers.
func (p *prover) review(ctx context.Context) error {
	type review struct {
		api.Type
		Status struct {
			UserInfo struct {
				Username string `json:"username"`
			} `json:"userInfo"`
		} `json:"status,omitzero"`
	}
	in := review{Type: api.Type{APIVersion: "authentication.k8s.io/v1", Kind: "SelfSubjectReview"}}
	var out review
	if err := p.c.Create(ctx, "/apis/authentication.k8s.io/v1/selfsubjectreviews", in, &out); err != nil {
		return err
	}
	if out.Status.UserInfo.Username == "" {
		return fmt.Errorf("review this node's identity: no name in the answer: %w", errUnproved)
	}
	return nil
}
