// Package kube holds the end-to-end tests on a real Kubernetes, see package cluster
// beside: every sentence of what the pod network must show on a cluster is a named
// test here, and prints what it measured. Bounds of time are those promises;
// everything else waits on conditions.
//
//	EDGEMESH_TIER=long            run them (make e2e)
//	KEEP=1                       leave the cluster running at the end
//	EDGEMESH_KUBE_ATTACH=DIR     use one that was left
//	FAMILIES=ipv6,ipv4           of pods and Services, the first first (ipv4)
//	EDGEMESH_CUTS=20             how often a site with a NetworkPolicy loses its power (1)
//	EDGEMESH_E2E_IMAGES=DIR      archives of the images, instead of `make images`
package kube
