// Package livemap serves the page of `edgemesh-agent map`: nodes by site, relays, and the paths in use between the nodes, as
// they change.
//
//	server.go   the page, for those who have the token, and what is new on it
//	hub.go      hands what is new to all pages that are open
//	detail.go   what is known of one pair
//	model.go    merges what members report into nodes, relays and pairs; sites.go: where nodes stand
//	findings.go puts members' findings where they are about: the map judges nothing
//	web/        the page; web/cytoscape.min.js.gz draws, and is the npm package's own file, compressed (DESIGN.md)
package livemap
