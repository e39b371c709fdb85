package controller

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/membership/kube/kubetest"
)

// recorder is an API that takes Events and has a PodNetwork.
type recorder struct {
	cluster
	banned []string
	events []string
}

func (r *recorder) Get(_ context.Context, _ string, out any) error {
	n := kubetest.PodNetwork("10.244.0.0/16")
	n.Spec.Banned = r.banned
	*out.(*api.PodNetwork) = *n
	return nil
}

func (r *recorder) Create(_ context.Context, path string, in, _ any) error {
	e := in.(map[string]any)
	about := e["involvedObject"].(map[string]string)
	r.events = append(r.events, fmt.Sprint(e["type"], " ", e["reason"], " ", about["name"], " ", about["uid"], " ", strings.Contains(e["message"].(string), about["name"]+", peer ID "), path == api.EventsPath))
	return nil
}

// Who joins, leaves, gets another key or is banned is one Event each; what was so when the controller began to lead is none.
func TestJournal(t *testing.T) {
	r := &recorder{banned: []string{"a"}}
	j := newJournal(r, nil, slog.New(slog.DiscardHandler))
	ids := kubetest.PeerIDs(t, 4)
	bound := func(name, id, uid string) *api.MeshNode {
		m := kubetest.MeshNode(name, id)
		m.Meta.UID, m.Meta.OwnerReferences = uid, []api.OwnerReference{{UID: "node-" + name}}
		return m
	}
	wants := func(when string, want ...string) {
		t.Helper()
		if !slices.Equal(r.events, want) {
			t.Errorf("%s: %q, want %q", when, r.events, want)
		}
		r.events = nil
	}
	event := func(what string, m *api.MeshNode) {
		j.hear(t.Context(), news{event: client.Event{What: what, Object: m}})
	}
	a, b := bound("a", ids[0], "1"), bound("b", ids[1], "2")
	j.readBans(t.Context())
	j.hear(t.Context(), news{all: true, list: []api.Object{a, b}})
	j.readBans(t.Context())
	wants("the beginning")
	event(client.Modified, b)
	event(client.Added, bound("c", ids[2], "3"))
	wants("c joins", "Normal MeshMemberJoined c node-c true true")
	event(client.Modified, bound("b", ids[3], "2"))
	wants("b's key changes", "Warning MeshKeyChanged b node-b true true")
	event(client.Deleted, bound("c", ids[2], "an earlier one"))
	event(client.Deleted, bound("c", ids[2], "3"))
	wants("c leaves", "Normal MeshMemberLeft c node-c true true")
	event(client.Added, bound("c", ids[1], "4"))
	wants("c returns with another key", "Warning MeshKeyChanged c node-c true true")
	r.banned = []string{"a", ids[3]}
	j.readBans(t.Context())
	j.readBans(t.Context())
	wants("b is banned by its peer ID", "Warning MeshMemberBanned b node-b true true")
	j.hear(t.Context(), news{all: true, list: []api.Object{a, bound("d", ids[2], "5")}})
	wants("a list after an interruption", "Normal MeshMemberLeft b node-b true true", "Normal MeshMemberLeft c node-c true true", "Normal MeshMemberJoined d node-d true true")
	for i := range 3 * mostEvents {
		event(client.Added, bound(fmt.Sprint("x", i), ids[2], fmt.Sprint("x", i)))
	}
	if n := len(r.events); n < mostEvents/2 || n > mostEvents {
		t.Errorf("%d Events of %d nodes", n, 3*mostEvents)
	}
}
