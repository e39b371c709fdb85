package cri

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// CRI-O's configuration (crio.conf(5)): a file, then all files of a directory in the order of their names.
const (
	crioConf    = "/etc/crio/crio.conf"
	crioDropIns = "/etc/crio/crio.conf.d"
)

// CRIO is CRI-O's CNI.Runtime.
const CRIO = "CRI-O"

// crioFile is what one file of CRI-O's configuration says.
type crioFile struct {
	CRIO struct {
		Network struct {
			NetworkDir string   `toml:"network_dir"`
			PluginDirs []string `toml:"plugin_dirs"`
		} `toml:"network"`
	} `toml:"crio"`
}

// crio reads CRI-O's configuration.
func (h host) crio() (CNI, error) {
	out := CNI{host: h, Runtime: CRIO, ConfDir: defaultConfDir, BinDirs: []string{defaultBinDir}}
	var files []string
	if h.exists(crioConf) {
		files = append(files, crioConf)
	}
	entries, err := os.ReadDir(h.path(crioDropIns)) // sorted
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return CNI{}, unusable(crioDropIns, "%w: run this as root", err)
	}
	for _, e := range entries {
		if !e.IsDir() {
			files = append(files, filepath.Join(crioDropIns, e.Name()))
		}
	}
	for _, path := range files {
		var f crioFile
		if err := h.decode(path, &f); err != nil {
			return CNI{}, err
		}
		n := f.CRIO.Network
		if n.NetworkDir != "" {
			out.ConfDir, out.File = filepath.Clean(n.NetworkDir), path
		}
		if len(n.PluginDirs) > 0 {
			out.BinDirs, out.File = nil, path
			for _, d := range n.PluginDirs {
				out.BinDirs = append(out.BinDirs, filepath.Clean(d))
			}
		}
	}
	return out, nil
}
