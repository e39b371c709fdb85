// Package ways lists the ways of installing that the pages describe, and the runs on the cluster lab in which each pair of their parts
// occurs. Who documents another way adds its part here, and a run (test/kube TestWays).
package ways

import "slices"

// The parts of a way. A run has one value of each but the last, since its edges differ in their forms.
const (
	Platform = iota
	By
	Relay
	Controller
	Form
	parts
)

// Values of the parts.
const (
	Plain, KubeEdge, OpenYurt         = "plain", "kubeedge", "openyurt"
	Manifest, Chart, Script           = "manifest", "chart", "first-steps"
	ControlPlane, Node                = "control-plane node", "another node" // the relay in the cluster
	Unit, Container                   = "unit outside", "container outside"
	Same, Another, None               = "the relay's node", "elsewhere", "none"
	DaemonSet, SystemdUnit, StaticPod = "DaemonSet", "unit", "static pod"
)

// values of each part.
var values = [parts][]string{
	{Plain, KubeEdge, OpenYurt},
	{Manifest, Chart, Script},
	{ControlPlane, Node, Unit, Container},
	{Same, Another, None},
	{DaemonSet, SystemdUnit, StaticPod},
}

// Way is a value of each part, "" for any.
type Way [parts]string

// Undocumented is what no page describes, with a sentence of a page that says what holds in its place.
type Undocumented struct {
	Way            Way
	Page, Sentence string
}

const (
	sameForAll = "`edgemesh.yaml` is the same for every cluster; two small objects hold what differs."
	noNode     = "Any small server will do: it needs no Kubernetes"
)

// Excluded are those.
var Excluded = []Undocumented{
	{Way{Platform: KubeEdge, By: Manifest}, "docs/kubeedge.md", "Install the chart with `--set kubeedge.enabled=true`."},
	{Way{Platform: KubeEdge, Controller: None}, "docs/kubeedge.md", "The controller writes for an edge's agent"},
	{Way{By: Manifest, Controller: None}, "docs/install.md", sameForAll},
	{Way{By: Manifest, Relay: ControlPlane, Controller: Another}, "docs/install.md", sameForAll}, // the chart has controller.nodeSelector
	{Way{Relay: Unit, Controller: Same}, "docs/relay.md", noNode},
	{Way{Relay: Container, Controller: Same}, "docs/relay.md", noNode},
}

// Run is a run on the cluster lab.
type Run struct {
	Way  Way      // without a form
	Form []string // of the edges
	Test string   // the one that runs it
}

func run(platform, by, relay, controller string) Run {
	return Run{Way{platform, by, relay, controller}, values[Form], "TestWays"}
}

// Runs are those of tests that are there for something else, then those that only TestWays has: as few as can be.
var Runs = []Run{
	{Way{KubeEdge, Script, ControlPlane, Same}, []string{DaemonSet}, "TestSmallestCloud"},
	{Way{Plain, Script, Unit, Another}, []string{DaemonSet}, "TestByTheReadme"},
	{Way{Plain, Script, Unit, Another}, values[Form], "TestForms"},
	{Way{KubeEdge, Chart, Unit, Another}, []string{DaemonSet, SystemdUnit}, "TestKubeEdgeScene"},
	{Way{OpenYurt, Chart, Unit, Another}, []string{DaemonSet}, "TestOpenYurtScene"},
	{Way{Plain, Chart, Unit, Another}, []string{DaemonSet}, "TestUninstall"},
	{Way{Plain, Script, ControlPlane, Same}, []string{DaemonSet}, "TestRelayInCluster"},
	run(KubeEdge, Chart, ControlPlane, Another),
	run(KubeEdge, Chart, Node, Same),
	run(KubeEdge, Script, Container, Another),
	run(OpenYurt, Manifest, ControlPlane, Same),
	run(OpenYurt, Manifest, Unit, Another),
	run(OpenYurt, Chart, ControlPlane, None),
	run(OpenYurt, Manifest, Container, Another),
	run(OpenYurt, Script, Node, None),
	run(Plain, Chart, Container, None),
	run(Plain, Chart, Unit, None),
	run(Plain, Manifest, Node, Another),
}

// Documented reports whether the pages describe a way.
func Documented(w Way) bool {
	return !slices.ContainsFunc(Excluded, func(u Undocumented) bool {
		for part, v := range u.Way {
			if v != "" && v != w[part] {
				return false
			}
		}
		return true
	})
}

// all are the documented ways.
func all() (out []Way) {
	var with func(w Way, part int)
	with = func(w Way, part int) {
		if part == parts {
			if Documented(w) {
				out = append(out, w)
			}
			return
		}
		for _, v := range values[part] {
			w[part] = v
			with(w, part+1)
		}
	}
	with(Way{}, 0)
	return out
}

// pair is two values of different parts.
type pair [2]string

// pairs of a run.
func (r Run) pairs() map[pair]bool {
	out := map[pair]bool{}
	for _, form := range r.Form {
		w := r.Way
		w[Form] = form
		for i, a := range w {
			for _, b := range w[i+1:] {
				out[pair{a, b}] = true
			}
		}
	}
	return out
}
