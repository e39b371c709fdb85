package livemap

import (
	"slices"
)

// lans are nodes that packets reach by kernel routes alone, so that they are on one LAN: probes have proved it. What was
// proved once counts for as long as the map runs, or nodes would move whenever a pair falls idle. Each has the node that it
// was joined to.
type lans map[string]string

// root is the node that stands for a LAN.
func (l lans) root(n string) string {
	for l[n] != "" {
		n = l[n]
	}
	return n
}

func (l lans) join(a, b string) {
	a, b = l.root(a), l.root(b)
	if a != b {
		l[max(a, b)] = min(a, b)
	}
}

// sites says where each node stands: what the membership says, else the site that all others on its LAN have which have one,
// else the LAN itself, by its first node, else "".
func (l lans) sites(members map[string]*member) map[string]string {
	of := map[string][]string{}
	for name := range members {
		of[l.root(name)] = append(of[l.root(name)], name)
	}
	out := map[string]string{}
	for _, names := range of {
		slices.Sort(names)
		lan := ""
		if len(names) > 1 {
			lan = "LAN of " + names[0]
		}
		var said []string
		for _, n := range names {
			if s := members[n].Site; s != "" && !slices.Contains(said, s) {
				said = append(said, s)
			}
		}
		if len(said) == 1 {
			lan = said[0]
		}
		for _, n := range names {
			if out[n] = members[n].Site; out[n] == "" {
				out[n] = lan
			}
		}
	}
	return out
}
