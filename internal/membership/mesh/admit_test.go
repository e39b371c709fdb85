package mesh

import (
	"slices"
	"testing"
)

func TestAdmitted(t *testing.T) {
	s := twoSites()
	s.Relays = append(s.Relays, Relay{PeerID: "E2", Addrs: []string{"/ip4/5.5.5.5/tcp/4470"}}) // edge-2 is one
	names := func(s State) (out []string) {
		for _, n := range s.Nodes {
			out = append(out, n.Name)
		}
		for _, r := range s.Relays {
			out = append(out, "relay "+string(r.PeerID))
		}
		return out
	}
	all := names(s)
	const label = RestrictedPrefix + "mesh"
	for i := range s.Nodes { // edge-2 has no label
		if name := s.Nodes[i].Name; name != "edge-2" {
			s.Nodes[i].Labels = map[string]string{label: name}
		}
	}
	for _, c := range []struct {
		banned []string
		label  string
		gone   []string
	}{
		{nil, "", nil},
		{[]string{"nobody", "E9"}, "", nil},
		{[]string{"edge-1"}, "", []string{"edge-1"}},
		{[]string{"E1"}, "", []string{"edge-1"}},
		{[]string{"edge-2"}, "", []string{"edge-2", "relay E2"}},
		{[]string{"E2"}, "", []string{"edge-2", "relay E2"}},
		{[]string{"R1"}, "", []string{"relay R1"}},
		{nil, label, []string{"edge-2", "relay E2"}},
		{[]string{"E1"}, label, []string{"edge-1", "edge-2", "relay E2"}},
		{nil, label + "=edge-1", []string{"cloud.example.org", "edge-2", "relay E2"}},
		{nil, label + "=", []string{"cloud.example.org", "edge-1", "edge-2", "relay E2"}},
		{nil, RestrictedPrefix + "other", []string{"cloud.example.org", "edge-1", "edge-2", "relay E2"}},
	} {
		s.Banned, s.AdmitLabel = c.banned, c.label
		want := slices.DeleteFunc(slices.Clone(all), func(n string) bool { return slices.Contains(c.gone, n) })
		if got := names(s.Admitted()); !slices.Equal(got, want) {
			t.Errorf("banned %v, label %q: %v, want %v", c.banned, c.label, got, want)
		}
		if now := names(s); !slices.Equal(now, all) {
			t.Errorf("banned %v: the state itself was changed: %v", c.banned, now)
		}
	}
}

// Observers are members that are listed, by name or by peer ID; a name of nobody and a peer ID of no member mean nothing.
func TestObserves(t *testing.T) {
	p := Plan{Nodes: []Node{{Name: "a", PeerID: "A"}, {Name: "b", PeerID: "B"}, {Name: "c", PeerID: "C"}}, Observers: []string{"a", "B", "nobody", "D"}}
	for id, want := range map[PeerID]bool{"A": true, "B": true, "C": false, "D": false, "": false, "nobody": false} {
		if p.Observes(id) != want {
			t.Errorf("%q: %v", id, !want)
		}
	}
}
