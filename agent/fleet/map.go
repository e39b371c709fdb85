package fleet

import (
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"html"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

//go:embed map.html
var mapPage string

const (
	// mapEvery is how often --watch draws the map again; the page loads itself as often.
	mapEvery = 10 * time.Second
	// mapRadius is how far from the middle, 0, anything is, in units of the picture.
	mapRadius = 500.0
	// mapShare is how much of the room that a site has its nodes take.
	mapShare = 0.7
)

// drawing is what the page shows.
type drawing struct {
	At      string
	Refresh int // seconds; 0: the page stays as it is
	Summary string
	Sites   []place
	Nodes   []place
	Edges   []edge
}

// place is a node, or the name of a site.
type place struct {
	Name, Site, Class, Why string
	X, Y                   float64
}

// edge is how two nodes reach each other.
type edge struct {
	A, B, Path, Detail string
	X1, Y1, X2, Y2     float64
}

func newMap(k *cluster) *cobra.Command {
	var file string
	var watch bool
	c := &cobra.Command{
		Use:   "map",
		Short: "Draw nodes by site and the paths between them into an HTML file",
		Long: `Draw the nodes, grouped by site, and the paths in use between them into one HTML file that
needs nothing else: a browser shows it offline, and the same as a table below the picture.
With --watch the file is written again every 10 s, and the page follows.`,
		Example: `  kubectl edgemesh map --write mesh.html
  kubectl edgemesh map --write mesh.html --watch`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if file == "" {
				return badUsage(c, errors.New("--write FILE is missing"))
			}
			for {
				states, err := k.states(c.Context())
				if err == nil {
					err = writeMap(file, draw(states, time.Now(), watch))
				}
				if err != nil || !watch {
					return err
				}
				select {
				case <-c.Context().Done():
					return nil // interrupted: that is how it ends
				case <-time.After(mapEvery):
				}
			}
		},
	}
	c.Flags().StringVar(&file, "write", "", "the file, which is replaced")
	c.Flags().BoolVar(&watch, "watch", false, "write it again every 10 s until interrupted")
	return c
}

// writeMap replaces the file in one step: a browser never sees half of it.
func writeMap(file string, d drawing) (err error) {
	f, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)+".*")
	if err != nil {
		return fmt.Errorf("--write: %w", err)
	}
	defer os.Remove(f.Name()) // gone already where all went well
	_, err = f.WriteString(d.page())
	if err := errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return fmt.Errorf("--write %s: %w", file, err)
	}
	return os.Rename(f.Name(), file)
}

// page is the HTML. It is not made by html/template, with which the linker keeps every exported method, 6 MB of an agent.
func (d drawing) page() string {
	var refresh, lines, circles, sites, nodes, paths strings.Builder
	if d.Refresh > 0 {
		markup(&refresh, `<meta http-equiv="refresh" content="%d">`, d.Refresh)
	}
	for _, e := range d.Edges {
		markup(&lines, `<line class="%s" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f">`, e.Path, e.X1, e.Y1, e.X2, e.Y2)
		markup(&lines, "<title>%s – %s: %s %s</title></line>\n", e.A, e.B, e.Path, e.Detail)
		markup(&paths, "<tr><td>%s</td><td>%s</td><td>%s</td><td>%s</td></tr>\n", e.A, e.B, e.Path, e.Detail)
	}
	for _, n := range d.Nodes {
		markup(&circles, `<circle class="%s" cx="%.1f" cy="%.1f" r="13"><title>%s: %s</title></circle>`, n.Class, n.X, n.Y, n.Name, n.Why)
		markup(&circles, "\n<text x=\"%.1f\" y=\"%.1f\" dy=\"32\">%s</text>\n", n.X, n.Y, n.Name)
		markup(&nodes, "<tr><td>%s</td><td>%s</td><td>%s</td></tr>\n", n.Name, n.Site, n.Why)
	}
	for _, s := range d.Sites {
		markup(&sites, "<text class=\"site\" x=\"%.1f\" y=\"%.1f\" dy=\"-26\">%s</text>\n", s.X, s.Y, s.Name)
	}
	return strings.NewReplacer("{{refresh}}", refresh.String(), "{{summary}}", html.EscapeString(d.Summary), "{{at}}", d.At,
		"{{lines}}", lines.String(), "{{circles}}", circles.String(), "{{sites}}", sites.String(),
		"{{nodes}}", nodes.String(), "{{paths}}", paths.String()).Replace(mapPage)
}

// markup prints to b. Words among args, which nodes may have chosen, are no markup, nor do they end an attribute.
func markup(b *strings.Builder, format string, args ...any) {
	for i, a := range args {
		if s, ok := a.(string); ok {
			args[i] = html.EscapeString(s)
		}
	}
	fmt.Fprintf(b, format, args...)
}

// draw places sites on a circle, and each one's nodes on a smaller one.
func draw(states []state, now time.Time, watch bool) drawing {
	d := drawing{At: now.UTC().Format("2006-01-02 15:04:05 UTC")}
	if watch {
		d.Refresh = int(mapEvery / time.Second)
	}
	sites := map[string][]state{}
	for _, s := range states {
		sites[siteOf(s.Node, states)] = append(sites[siteOf(s.Node, states)], s)
	}
	at := map[string]place{}
	ratio := mapShare * math.Sin(math.Pi/float64(max(2, len(sites)))) // of the circles' radii: sites do not overlap
	outer := mapRadius / (1 + ratio)
	inner := outer * ratio
	if len(sites) == 1 {
		outer, inner = 0, mapRadius
	}
	for i, name := range slices.Sorted(maps.Keys(sites)) {
		x, y := around(i, len(sites), outer)
		d.Sites = append(d.Sites, place{Name: cmp.Or(name, "no site"), X: x, Y: y})
		for j, s := range sites[name] {
			dx, dy := around(j, len(sites[name]), inner)
			if len(sites[name]) == 1 {
				dx, dy = 0, 0
			}
			why := trouble(s, states)
			class := "well"
			switch {
			case s.Status == nil:
				class = "unasked"
			case why != "":
				class = "wrong"
			}
			p := place{Name: s.Node, Site: name, Class: class, Why: cmp.Or(why, "no trouble"), X: x + dx, Y: y + dy}
			at[s.Node] = p
			d.Nodes = append(d.Nodes, p)
		}
	}
	d.Edges = edges(states, at)
	well := 0
	for _, n := range d.Nodes {
		if n.Class == "well" {
			well++
		}
	}
	d.Summary = fmt.Sprintf("%d nodes at %d sites, %d without trouble; %d pairs in use", len(states), len(sites), well, len(d.Edges))
	return d
}

// around is place i of n on a circle, the first one on top.
func around(i, n int, radius float64) (x, y float64) {
	angle := 2*math.Pi*float64(i)/float64(n) - math.Pi/2
	return radius * math.Cos(angle), radius * math.Sin(angle)
}

// siteOf is where a node says that it is, or others say so.
func siteOf(node string, states []state) string {
	said := ""
	for _, s := range states {
		if s.Status == nil {
			continue
		}
		if s.Node == node {
			return s.Status.Site
		}
		for _, p := range s.Status.Peers {
			if p.Node == node {
				said = cmp.Or(said, p.Site)
			}
		}
	}
	return said
}

// edges are the pairs of which one end uses a path. Where the ends differ, the worse path counts: that is the one to look at.
func edges(states []state, at map[string]place) []edge {
	found := map[[2]string]edge{}
	for _, s := range states {
		if s.Status == nil {
			continue
		}
		for _, p := range s.Status.Peers {
			a, b := at[s.Node], at[p.Node]
			if p.Path == "idle" || b.Name == "" {
				continue
			}
			key := [2]string{min(s.Node, p.Node), max(s.Node, p.Node)}
			detail := p.Transport
			if p.RTTMs != nil {
				detail = fmt.Sprintf("%s, %.1f ms", detail, *p.RTTMs)
			}
			if p.Reason != "" {
				detail += "; " + p.Reason
			}
			e := edge{A: s.Node, B: p.Node, Path: p.Path, Detail: clean(detail), X1: a.X, Y1: a.Y, X2: b.X, Y2: b.Y}
			if old, there := found[key]; !there || slices.Index(paths, e.Path) > slices.Index(paths, old.Path) {
				found[key] = e
			}
		}
	}
	out := slices.Collect(maps.Values(found))
	slices.SortFunc(out, func(x, y edge) int {
		return cmp.Or(slices.Index(paths, y.Path)-slices.Index(paths, x.Path), cmp.Compare(x.A, y.A), cmp.Compare(x.B, y.B))
	})
	return out
}
