//go:build tools

// What build.sh builds besides our own packages; it stays in go.mod by this file.
package kube

import (
	_ "github.com/containernetworking/plugins/plugins/main/loopback"
	_ "github.com/containernetworking/plugins/plugins/meta/portmap"
)
