// Command kubectl-edgemesh is a plugin of kubectl that shows the pod network of the whole cluster, for machines that have no
// edgemesh-agent: that program does the same when it is called by this name.
package main

import "edgemesh/agent/fleet"

func main() { fleet.Main() }
