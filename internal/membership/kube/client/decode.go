package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"edgemesh/internal/membership/kube/api"
)

// decodeList reads a list's JSON, which must be complete: one that ends early would read
// as a shorter list.
func decodeList(r io.Reader, k api.Kind, trim func(api.Object)) ([]api.Object, string, error) {
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
			items, err = decodeItems(d, k, trim)
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
func decodeItems(d *json.Decoder, k api.Kind, trim func(api.Object)) ([]api.Object, error) {
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
		if trim != nil {
			trim(o)
		}
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

// Event is one line of a watch.
type Event struct {
	What   string // Added, Modified, Deleted or Bookmark
	Object api.Object
}

// What happened to an object, in the API's words.
const (
	Added    = "ADDED"
	Modified = "MODIFIED"
	Deleted  = "DELETED"
	Bookmark = "BOOKMARK"
)

// Stream is a watch.
type Stream struct {
	body io.ReadCloser
	d    *json.Decoder
	kind api.Kind
	trim func(api.Object)
	met  *contact
}

// Next waits for the next event. At the watch's normal end the error is io.EOF; what the server
// ended it for is a *apierrors.StatusError.
func (s *Stream) Next() (Event, error) {
	e, err := decodeEvent(s.d, s.kind, s.trim)
	if err == nil {
		s.met.heard()
	}
	return e, err
}

// Close ends the watch.
func (s *Stream) Close() { s.body.Close() }

// decodeEvent reads the next event of a watch. At its normal end the error is
// io.EOF; an ERROR event is a *apierrors.StatusError.
func decodeEvent(d *json.Decoder, k api.Kind, trim func(api.Object)) (Event, error) {
	var line struct {
		Type   string          `json:"type"`
		Object json.RawMessage `json:"object"`
	}
	if err := d.Decode(&line); err != nil {
		return Event{}, err
	}
	switch line.Type {
	case Added, Modified, Deleted, Bookmark:
		o := k.New()
		if err := json.Unmarshal(line.Object, o); err != nil {
			return Event{}, fmt.Errorf("decode a %s: %w", k.Kind, err)
		}
		if trim != nil {
			trim(o)
		}
		if line.Type != Bookmark && (o.Metadata().Name == "" || o.Metadata().UID == "") {
			return Event{}, errors.New("an object without name or UID")
		}
		return Event{line.Type, o}, nil
	case "ERROR":
		var st metav1.Status
		if err := json.Unmarshal(line.Object, &st); err != nil {
			return Event{}, fmt.Errorf("decode a %s: %w", k.Kind, err)
		}
		return Event{}, fmt.Errorf("the server ended the watch: %w", &apierrors.StatusError{ErrStatus: st})
	}
	return Event{}, fmt.Errorf("unknown event %q", line.Type)
}
