// Package observe is how members report to each other which paths they use: any member may see the pair that it is one end
// of, an observer of the membership everything. Who observes is known from the connection, which is encrypted.
//
//	report.go   what a member reports, from its status, and the bounds of it: the only place where bytes of others are read
//	answer.go   the member's side: who may see what, how often, and when a report is sent
//	observer.go the observer's side: one stream to each member, while an operator looks, and what it hands on
//	node.go     both sides, joined to a running agent
//
// A stream for /edgemesh/observe/1 carries:
//
//	observer ──▶ member   1 byte: 'p' the pair of the two, 'a' everything
//	member ──▶ observer   reports, each: length, 4 bytes, big endian, 1 to MaxReport | JSON
//
// The member sends a report immediately, then within a second when a path has changed, and otherwise every 3 s. It continues
// until either side ends the stream. A member that refuses sends one report that has nothing but the reason.
package observe
