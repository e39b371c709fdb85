package read

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"edgemesh/agent/host/nft"
	policy "edgemesh/agent/policy/compile"
	"edgemesh/agent/policy/enforce"
	"edgemesh/agent/policy/podgroups"
	"edgemesh/internal/membership/kube"
	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/membership/mesh"
	"edgemesh/test/fair"
	"edgemesh/test/tier"
)

// whole is a kernel with br_netfilter.
type whole struct{ *nft.Policies }

func (whole) Partly() string { return "" }

// TestCost holds what policies take of an agent that has 30 of 10,000 pods, and 30 of 1,000 policies and their groups for these, with a
// controller: compiled and in force in a kernel. Most memory is what they hold; processor time is that of a minute's upkeep.
func TestCost(t *testing.T) {
	tier.Long(t)
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: network namespaces need root")
	}
	if os.Getenv("EDGEMESH_COST") == "" { // a process of its own: goroutines change threads
		c := exec.CommandContext(t.Context(), "unshare", "-n", os.Args[0], "-test.run=^TestCost$", "-test.v")
		c.Env = append(os.Environ(), "EDGEMESH_COST=1")
		out, err := c.CombinedOutput()
		if t.Logf("%s", out); err != nil {
			t.Error(err)
		}
		return
	}
	const spaces, perSpace, period = 3, 10, 30 * time.Second
	dir := t.TempDir()
	before := resident(t)
	w := newWorld()
	namespaces := map[string]string{}
	for i := range spaces * perSpace {
		space, ip := fmt.Sprint("ns-", i%spaces), fmt.Sprintf("10.244.200.%d", 5+i)
		namespaces[space] = "Ingress"
		own := pod(t, fmt.Sprint("own-", i), "a", ip, "own")
		own.Meta.Namespace, own.As.Namespace = space, space
		p := onlyWeb(t)
		p.Meta.Namespace, p.Meta.Name = space, fmt.Sprint("p-", i/spaces)
		p.Written.Metadata.Namespace, p.Written.Metadata.Name = p.Meta.Namespace, p.Meta.Name
		p.Written.Spec.Ingress[0].From[0].PodSelector.MatchLabels["app"] = fmt.Sprint("app-", i/spaces)
		parsed, err := p.Parse()
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range policy.Groups([]policy.Policy{parsed}) {
			w.objects["group "+g.ID()] = group(t, g.ID(), i)
		}
		w.objects["pod "+podgroups.Key(own)], w.objects["policy "+podgroups.Key(p)] = own, p
		record := fmt.Sprintf(`{"ip":%q,"network":"edgemesh","containerID":"c%d","ifName":"eth0","namespace":%q,"pod":"own-%[2]d","allocated":"2026-01-02T03:04:05Z"}`, ip, i, space)
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%s_%s_own-%d", ip, space, i)), []byte(record), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	log := slog.New(slog.DiscardHandler)
	o := enforce.New(enforce.Config{StateDir: t.TempDir(), RuntimeDir: t.TempDir(), DataDir: dir, Kernel: whole{nft.NewPolicies(log)}, Warn: func(string, string) {}, Log: log})
	l := New(Config{Node: "a", Follow: w.follow, Has: func(context.Context, api.Kind) bool { return false }, Local: o.Local, Set: o.Set, SetOff: o.SetOff, InForce: o.Given, Log: log})
	o.OnPods(l.PodsChanged)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{}, 2)
	for _, run := range []func(context.Context){o.Run, l.Run} {
		go func() { run(ctx); ended <- struct{}{} }()
	}
	defer func() { cancel(); <-ended; <-ended }()
	l.SetState(mesh.State{Policies: mesh.Policies{PolicyController: true, PolicyNamespaces: namespaces, PolicyProved: true}})
	members := func() (n int) {
		for _, s := range o.InForce().Sets {
			n += len(s)
		}
		return n
	}
	fair.Eventually(t, 20*time.Second, "all are in force", func() error {
		if m, a := members(), len(o.InForce().At); m < spaces*perSpace*10 || a < spaces*perSpace {
			return fmt.Errorf("%d members, %d addresses: %v", m, a, l.Status())
		}
		return nil
	})
	time.Sleep(3 * time.Second) // sleep: what the start costs
	grown := resident(t) - before
	used := cpu()
	time.Sleep(period)                // sleep: what rest costs
	if err := o.Apply(); err != nil { // as the repair does each 30 s
		t.Error(err)
	}
	share := float64(cpu()-used) / float64(period)
	used = cpu()
	const changes = 20
	for i := range changes {
		for key, x := range w.objects {
			if g, ok := x.(*api.PolicyGroup); ok {
				again := *g
				again.Meta.ResourceVersion += "0"
				again.Spec.Members = append([]string{fmt.Sprintf("10.244.250.%d", i)}, g.Spec.Members[1:]...)
				w.mu.Lock()
				w.objects[key] = &again
				on := w.on
				w.mu.Unlock()
				for k, f := range on {
					if w.selects(w.kinds[k], &again) {
						f(kube.News{Event: client.Event{What: client.Modified, Object: &again}})
					}
				}
				break
			}
		}
		time.Sleep(200 * time.Millisecond) // sleep: the rate of changes
	}
	each := (cpu() - used) / changes
	t.Logf("30 pods, 30 policies, 30 groups of 10: %.1f MB, %.3f %% of a processor, a changed group %v", float64(grown)/(1<<20), 100*share, each.Round(10*time.Microsecond))
	if grown > 5<<20 {
		t.Errorf("policies take %.1f MB, want at most 5", float64(grown)/(1<<20))
	}
	if share > 0.001 {
		t.Errorf("policies take %.2f %% of a processor at rest, want at most 0.1", 100*share)
	}
}

// group is a PolicyGroup of ten members.
func group(t *testing.T, id string, i int) *api.PolicyGroup {
	t.Helper()
	var members []string
	for n := range 10 {
		members = append(members, strconv.Quote(netip.AddrFrom4([4]byte{10, 244, byte(i), byte(2 + n)}).String()))
	}
	return object(t, new(api.PolicyGroup), `{"metadata":{"name":"%s-0","uid":%[1]q},"spec":{"group":%[1]q,"chunk":0,"chunks":1,"members":[%s]}}`, id, strings.Join(members, ","))
}

// resident is this process's memory, in bytes, as it is when nothing is garbage.
func resident(t *testing.T) int {
	t.Helper()
	runtime.GC()
	debug.FreeOSMemory()
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.Atoi(strings.Fields(string(b))[1])
	if err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize()
}

// cpu is the processor time that this process has used.
func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
