package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/membership/kube/kubetest"
	"edgemesh/internal/membership/mesh"
)

// recordsAPI stores the NodeRecords that are patched.
type recordsAPI struct {
	cluster
	patched map[string]int
	failing int // so many patches more
}

func (f *recordsAPI) Patch(_ context.Context, path, _ string, _ url.Values, in, out any) error {
	if f.failing > 0 {
		f.failing--
		return errors.New("no answer")
	}
	f.patched[path[strings.LastIndexByte(path, '/')+1:]]++
	spec := in.(map[string]any)["spec"].(map[string]any)
	r := out.(*api.NodeRecord)
	r.Spec.NodeUID, r.Spec.PodCIDRs = "n-"+path[strings.LastIndexByte(path, '/')+1:], spec["podCIDRs"].([]string)
	for k, v := range spec["labels"].(map[string]any) {
		if text, ok := v.(string); ok {
			r.Spec.Labels = map[string]string{k: text}
		}
	}
	return nil
}

// A node that changes its Node 40 times a second is named, and not answered with as many writes: its record follows slowly, and is
// right in the end; that of another node follows immediately.
func TestRecordsDoNotAnswerWritesWithWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		f := &recordsAPI{patched: map[string]int{}}
		r := &records{api: f, log: slog.New(slog.NewTextHandler(&log, nil)), metrics: newMetrics(nil), pace: copying(),
			nodes: map[string]*api.Node{}, made: map[string]*api.NodeRecord{}, dirty: map[string]bool{}, behind: map[string]time.Time{}}
		labelled := func(name, site string) *api.Node {
			n := kubetest.Node(name, 0, "10.244.1.0/24")
			n.Meta.Labels = map[string]string{mesh.SiteLabel: site}
			return n
		}
		for _, name := range []string{"wild", "calm"} {
			n := labelled(name, "first")
			r.nodes[name] = n
			r.made[name] = &api.NodeRecord{Meta: api.Meta{Name: name}, Spec: n.RecordSpec()}
		}
		change := func(name, site string) {
			r.take(client.Event{What: client.Modified, Object: labelled(name, site)})
			if err := r.round(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 40 * 30 { // 30 s
			change("wild", fmt.Sprint("s", i))
			if i == 600 {
				change("calm", "second")
			}
			time.Sleep(25 * time.Millisecond)
		}
		if n := f.patched["wild"]; n < 6 || n > 10 {
			t.Errorf("%d writes for 1200 changes in 30 s", n)
		}
		if f.patched["calm"] != 1 || r.made["calm"].Spec.Labels[mesh.SiteLabel] != "second" {
			t.Errorf("the other node's record: %d writes, %+v", f.patched["calm"], r.made["calm"].Spec)
		}
		if !strings.Contains(log.String(), "node=wild") || strings.Contains(log.String(), "node=calm") || strings.Count(log.String(), "\n") != 1 {
			t.Errorf("log:\n%s", log.String())
		}
		for range 20 { // the loop's next rounds
			time.Sleep(sweepAgain)
			if err := r.round(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if got := r.made["wild"].Spec.Labels[mesh.SiteLabel]; got != "s1199" || len(r.dirty) > 0 {
			t.Errorf("the record says %s in the end, still to do: %v", got, r.dirty)
		}
	})
}

// A node is not accused of what the API does not take: a change that is tried ten times is one.
func TestFailedWritesAccuseNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		f := &recordsAPI{patched: map[string]int{}, failing: 10}
		old, now := kubetest.Node("calm", 0, "10.244.1.0/24"), kubetest.Node("calm", 0, "10.244.1.0/24")
		now.Meta.Labels = map[string]string{mesh.SiteLabel: "second"}
		r := &records{api: f, log: slog.New(slog.NewTextHandler(&log, nil)), metrics: newMetrics(nil), pace: copying(),
			nodes: map[string]*api.Node{"calm": old}, made: map[string]*api.NodeRecord{"calm": {Meta: api.Meta{Name: "calm"}, Spec: old.RecordSpec()}},
			dirty: map[string]bool{}, behind: map[string]time.Time{}}
		r.take(client.Event{What: client.Modified, Object: now})
		for i := range 11 {
			if err := r.round(t.Context()); (err == nil) != (i == 10) {
				t.Fatalf("round %d: %v", i, err)
			}
			time.Sleep(sweepAgain)
		}
		if f.patched["calm"] != 1 || log.Len() > 0 {
			t.Errorf("%d writes, log:\n%s", f.patched["calm"], log.String())
		}
	})
}

// A node that writes its MeshNode again and again is named; its agent's own writes are not enough for that.
func TestWritersAreNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		s := &sight{log: slog.New(slog.NewTextHandler(&log, nil)), pace: writing(), nodes: map[string]*api.MeshNode{},
			known: map[string]*sighting{}, stated: map[string]bool{}}
		write := func(name string) { s.take(client.Modified, kubetest.MeshNode(name, "p")) }
		for i := range 600 {
			write("wild")
			if i%60 == 0 {
				write("calm")
			}
			time.Sleep(time.Second)
		}
		if !strings.Contains(log.String(), "node=wild") || strings.Contains(log.String(), "node=calm") || strings.Count(log.String(), "\n") > 11 {
			t.Errorf("log:\n%s", log.String())
		}
		s.take(client.Deleted, kubetest.MeshNode("wild", "p"))
		if len(s.pace.of) != 1 {
			t.Errorf("%d nodes are remembered", len(s.pace.of))
		}
	})
}
