package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/wording"
)

// create is the client's Create, or the deputy's where the API takes none from this node.
func (w *writer) create(ctx context.Context, path string, in, out any) error {
	return w.write(ctx, func() error { return w.client.Create(ctx, path, in, out) }, http.MethodPost, path, in, out)
}

// patch is a merge patch, likewise.
func (w *writer) patch(ctx context.Context, path string, in, out any) error {
	return w.write(ctx, func() error { return w.client.Patch(ctx, path, client.Merge, nil, in, out) }, http.MethodPatch, path, in, out)
}

// remove is the client's Remove, likewise.
func (w *writer) remove(ctx context.Context, path, uid string) error {
	var ignored json.RawMessage
	in := map[string]any{"preconditions": map[string]string{"uid": uid}}
	return w.write(ctx, func() error { return w.client.Remove(ctx, path, uid) }, http.MethodDelete, path, in, &ignored)
}

// write makes a write itself, or has the deputy make it where an edge-local cache refuses it, or has just acknowledged one
// that never arrived. The write after that is tried at the cache again.
func (w *writer) write(ctx context.Context, itself func() error, method, path string, in, out any) error {
	if w.cfg.Deputy == nil || !w.client.Plain() || len(w.controllers) == 0 {
		return itself()
	}
	why := errors.New("a write that it acknowledged never arrived")
	if !w.swallowed {
		if why = itself(); !apierrors.IsForbidden(why) {
			return why
		}
	}
	w.swallowed = false
	return w.instead(ctx, why, method, path, in, out)
}

// heard takes note of the outcome of a round of writes.
func (w *writer) heard(err error) {
	if errors.Is(err, errLied) && !w.swallowed {
		w.swallowed = true
		w.cfg.Log.Debug("a write was acknowledged and not stored; the next one is made by a controller, if there is one", "err", err)
	}
}

// instead makes, through the deputy, a write that an edge-local cache does not make, for the reason given.
func (w *writer) instead(ctx context.Context, why error, method, path string, in, out any) error {
	body, bad := json.Marshal(in)
	if bad != nil {
		return fmt.Errorf("encode %s %s: %w", method, path, bad)
	}
	code, answer, failed := w.cfg.Deputy.Write(ctx, w.relays, w.controllers, method, path, body)
	if failed != nil {
		// Without %w for the reason: it is no answer to what the controller was to write.
		return fmt.Errorf("%w; a controller is needed because %s does not write it itself: %s", failed, w.client.URL(), why.Error()) //nolint:errorlint // see above
	}
	if code/100 == 2 {
		if err := json.Unmarshal(answer, out); err != nil {
			return fmt.Errorf("%s %s by a controller: decode the answer: %w", method, path, err)
		}
		return nil
	}
	var st metav1.Status
	if json.Unmarshal(answer, &st) != nil || st.Kind != "Status" || st.Code == 0 {
		return fmt.Errorf("%s %s by a controller: %w", method, path, apierrors.NewGenericServerResponse(code, method, schema.GroupResource{}, "", "", 0, true))
	}
	st.Message = wording.Foreign(st.Message, 1<<10)
	return fmt.Errorf("%s %s by a controller: %w", method, path, &apierrors.StatusError{ErrStatus: st})
}
