// Command mkimage writes an OCI archive of one layer, as `ctr images import` reads
// it: for the static programs of the test cluster.
//
//	mkimage -out FILE.tar -name NAME:TAG -entrypoint /PROGRAM [-cmd ARGUMENTS] FILE:/PATH… '->TARGET:/LINK'…
package main

import (
	"flag"
	"fmt"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"edgemesh/build/oci"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "mkimage:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	fs := flag.NewFlagSet("mkimage", flag.ContinueOnError)
	out := fs.String("out", "", "archive to write")
	name := fs.String("name", "", "the image's full name")
	entrypoint := fs.String("entrypoint", "", "its program")
	command := fs.String("cmd", "", "its arguments, or its program")
	if err := fs.Parse(args); err != nil {
		return err
	}
	layer, err := rootFS(fs.Args())
	if err != nil {
		return err
	}
	config := v1.Config{Cmd: strings.Fields(*command), Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}}
	if *entrypoint != "" {
		config.Entrypoint = []string{*entrypoint}
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err = mutate.ConfigFile(image, &v1.ConfigFile{
		Architecture: runtime.GOARCH, OS: "linux", RootFS: v1.RootFS{Type: "layers"}, Config: config,
	})
	if err != nil {
		return err
	}
	if image, err = mutate.AppendLayers(image, static.NewLayer(layer, types.OCIUncompressedLayer)); err != nil {
		return err
	}
	archive, err := oci.Archive(*name, image)
	if err != nil {
		return err
	}
	return os.WriteFile(*out, archive, 0o644)
}

// rootFS returns the layer with the given FILE:/PATH pairs and the directories they need; FILE may be ->TARGET, a symbolic link.
func rootFS(pairs []string) ([]byte, error) {
	files := []oci.File{{Name: "etc/", Mode: 0o755}, {Name: "tmp/", Mode: 0o777 | os.ModeSticky}}
	for _, p := range pairs {
		src, dst, ok := strings.Cut(p, ":/")
		if !ok {
			return nil, fmt.Errorf("%q is not FILE:/PATH", p)
		}
		file := oci.File{Name: dst, Mode: 0o755}
		if target, link := strings.CutPrefix(src, "->"); link {
			file.Link = target
		} else {
			data, err := os.ReadFile(src)
			if err != nil {
				return nil, err
			}
			file.Data = data
		}
		for dir := path.Dir(dst); dir != "."; dir = path.Dir(dir) {
			files = append(files, oci.File{Name: dir + "/", Mode: 0o755})
		}
		files = append(files, file)
	}
	slices.SortFunc(files, func(a, b oci.File) int { return strings.Compare(a.Name, b.Name) })
	return oci.Tar(slices.CompactFunc(files, func(a, b oci.File) bool { return a.Name == b.Name }), time.Unix(0, 0))
}
