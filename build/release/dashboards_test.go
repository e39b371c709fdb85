package release

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	grafana "github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

// Grafana's own schema knows every field of the chart's dashboards; those left out have its defaults.
func TestDashboards(t *testing.T) {
	plugins.RegisterDefaultPlugins()
	files, err := filepath.Glob("../../manifests/edgemesh/monitoring/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d dashboards, %v", len(files), err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		//lint:ignore SA1019 the files have the first form, which every Grafana reads
		var all grafana.Dashboard //nolint:staticcheck // likewise
		if err := all.UnmarshalJSONStrict(text); err != nil {
			for line := range strings.Lines(err.Error()) {
				if !strings.Contains(line, "required field is missing") {
					t.Errorf("%s: %s", f, line)
				}
			}
		}
	}
}
