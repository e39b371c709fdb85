package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"edgemesh/agent/keep"
	"edgemesh/agent/kube/api"
)

// decodeList reads a list's JSON, which must be complete: one that ends early would read
// as a shorter list.
func decodeList(r io.Reader, k api.Kind) ([]api.Object, string, error) {
	d := json.NewDecoder(r)
	if err := delim(d, '{'); err != nil {
		return nil, "", err
	}
	var items []api.Object
	var listKind string
	var meta struct {
		ResourceVersion string `json:"resourceVersion"`
		Continue        string `json:"continue"`
	}
	sawItems := false
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, "", err
		}
		switch key {
		case "kind":
			err = d.Decode(&listKind)
		case "metadata":
			err = d.Decode(&meta)
		case "items":
			sawItems = true
			items, err = decodeItems(d, k)
		default:
			var skip json.RawMessage
			err = d.Decode(&skip)
		}
		if err != nil {
			return nil, "", err
		}
	}
	if err := delim(d, '}'); err != nil {
		return nil, "", err
	}
	switch {
	case !sawItems || listKind != k.Kind+"List":
		return nil, "", fmt.Errorf("the answer is %q, not a complete %sList", listKind, k.Kind)
	case meta.Continue != "":
		return nil, "", errors.New("the answer is only the first page of a list")
	}
	return items, meta.ResourceVersion, nil
}

// decodeItems reads the array of items, or null for none.
func decodeItems(d *json.Decoder, k api.Kind) ([]api.Object, error) {
	t, err := d.Token()
	if err != nil || t == nil {
		return nil, err
	}
	if t != json.Delim('[') {
		return nil, fmt.Errorf("items begin with %v", t)
	}
	var out []api.Object
	for d.More() {
		o := k.New()
		if err := d.Decode(o); err != nil {
			return nil, err
		}
		trim(o)
		out = append(out, o)
	}
	return out, delim(d, ']')
}

func delim(d *json.Decoder, want json.Delim) error {
	t, err := d.Token()
	if err == nil && t != want {
		err = fmt.Errorf("%v where %v belongs", t, want)
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// trim drops what is not used.
func trim(o api.Object) {
	switch o.(type) {
	case *keep.BlockAffinity, *keep.CiliumNode:
		o.Metadata().Annotations, o.Metadata().OwnerReferences = nil, nil
	}
	if n, ok := o.(*api.Node); ok {
		n.Meta.Annotations, n.Meta.OwnerReferences = keep.Annotations(n.Meta.Annotations), nil
		var one []api.Condition
		if c := api.FindCondition(n.Status.Conditions, networkUnavailable); c != nil {
			one = []api.Condition{*c}
		}
		n.Status.Conditions = one
	}
}

// event is one line of a watch.
type event struct {
	kind api.Kind
	what string // ADDED, MODIFIED, DELETED or BOOKMARK
	obj  api.Object
}

const (
	added    = "ADDED"
	modified = "MODIFIED"
	deleted  = "DELETED"
	bookmark = "BOOKMARK"
)

// decodeEvent reads the next event of a watch. At its normal end the error is
// io.EOF; an ERROR event is a *apierrors.StatusError.
func decodeEvent(d *json.Decoder, k api.Kind) (event, error) {
	var line struct {
		Type   string          `json:"type"`
		Object json.RawMessage `json:"object"`
	}
	if err := d.Decode(&line); err != nil {
		return event{}, err
	}
	switch line.Type {
	case added, modified, deleted, bookmark:
		o := k.New()
		if err := json.Unmarshal(line.Object, o); err != nil {
			return event{}, fmt.Errorf("decode a %s: %w", k.Kind, err)
		}
		trim(o)
		if line.Type != bookmark && (o.Metadata().Name == "" || o.Metadata().UID == "") {
			return event{}, errors.New("an object without name or UID")
		}
		return event{k, line.Type, o}, nil
	case "ERROR":
		var st metav1.Status
		if err := json.Unmarshal(line.Object, &st); err != nil {
			return event{}, fmt.Errorf("decode a %s: %w", k.Kind, err)
		}
		return event{}, fmt.Errorf("the server ended the watch: %w", &apierrors.StatusError{ErrStatus: st})
	}
	return event{}, fmt.Errorf("unknown event %q", line.Type)
}

// version parses a resource version. Those of one cluster are comparable
// (Kubernetes 1.35, KEP-5504); an answer without one, as caches give, is 0: older
// than everything.
func version(rv string) uint64 {
	n, err := strconv.ParseUint(rv, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
