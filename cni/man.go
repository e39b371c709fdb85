package main

import (
	"edgemesh/internal/manpage"
	"edgemesh/internal/version"
)

// writeMan writes the man page, made from the text of help, into a directory, which it makes if it does not exist.
func writeMan(dir string) error {
	return manpage.Page{
		Name: "edgemesh-cni", Source: "edgemesh-cni " + version.Number(), Short: "CNI plugin of the EdgeMesh pod network", Also: []string{"edgemesh-agent"},
		Help: "A container runtime calls edgemesh-cni with CNI_COMMAND set. An operator calls it\nwith arguments: ipam shows and repairs the addresses of pods.\n\n" +
			usage + "\nExit status:\n  0: done; 1: failed; 2: the command line is wrong\n",
	}.Write(dir)
}
