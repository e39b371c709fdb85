package kube

import (
	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/client"
)

// proof says that, a moment ago, a request went all the way to an API server and
// its store, and which cluster and which moment of its history that was.
type proof struct {
	cluster string // UID of the namespace kube-system: the cluster's identity
	version uint64 // of the whole store; lists made later are not older
	ownUID  string // of this node's MeshNode, "" when reading only
}

// listed is a list as it came.
type listed struct {
	kind   api.Kind
	items  []api.Object
	rv     uint64
	proof  *proof // nil: it may be stale, see reason
	reason error
	// missing: an API server said that it has no such kind, or forbade to read it.
	missing error
}

// event is a change of one object, by the API's word or by this node's own writing.
type event struct {
	kind api.Kind
	what string // added, modified or deleted
	obj  api.Object
}

const (
	added    = client.Added
	modified = client.Modified
	deleted  = client.Deleted
)

// trouble says that a kind cannot be followed now; with a nil err, that it can again.
type trouble struct {
	kind    api.Kind
	err     error
	refused bool // the list itself was answered with 403
}

// vouched is what the API answered to a request for a Node that a NodeRecord disagrees with.
type vouched struct {
	name   string
	serial int // of the dispute
	node   *api.Node
	err    error
	lasts  bool // it was read several times, over a minute
}

// kept says whether a controller keeps the NodeRecords.
type kept bool

// theirs is the digest of the membership as the controller that keeps the NodeRecords has it now, "" of one that does not say.
type theirs string

// registered is the outcome of the registrar's last round.
type registered struct{ err error }
