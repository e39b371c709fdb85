package ladder

// Event is something that happened to a peer. The doc comments say what follows.
type Event interface{ apply(m *Machine) }

type (
	// Open: a stream is to be opened. Try follows, once there is a path, or Fail.
	Open struct {
		ID   OpenID
		Lane Lane
	}
	// OpenFailed: it could not be opened on Path, which is suspected. Another Try follows, or Fail.
	OpenFailed struct {
		ID   OpenID
		Path PathID
	}
	// Opened: it is open. The peer is in demand.
	Opened struct{ ID OpenID }
	// Abandon: the caller no longer wants it, which says nothing of the path.
	Abandon struct{ ID OpenID }
	// Disconnect: the owner of the streams no longer needs the peer. Its paths are closed, unless it was used otherwise a moment
	// ago.
	Disconnect struct{}
	// Refuse: the peer is no longer a member, or is in quarantine. Everything is closed, and what comes later as soon as it
	// comes.
	Refuse struct{}
	// Admit takes Refuse back.
	Admit struct{}

	// Up: there is a connection, whoever dialed it.
	Up struct {
		Path PathID
		Link Link
	}
	// Ready: the path can be probed from now on, and is.
	Ready struct{ Path PathID }
	// Down: the connection has ended.
	Down struct{ Path PathID }
	// Ask: a stream is being opened on the path. An idle path may have died unnoticed: it is probed now.
	Ask struct{ Path PathID }
	// Suspect: something failed on the path. Others are used until it answers.
	Suspect struct{ Path PathID }
	// Broken: the path cannot be used: the peer found it dead, refuses to be probed on it, or large packets vanish. Unbound: an
	// address of this node was deleted, which is no flapping.
	Broken struct {
		Path    PathID
		Why     string
		Unbound bool
	}
	// Answer: a probe came back.
	Answer struct {
		Path   PathID
		Last   bool // it answers the last request, not one before
		Direct bool // an end owns the address at which it is seen
	}

	// IPv6: whether both nodes have an address in the IPv6 internet, as far as known.
	IPv6 struct{ Both bool }

	// Connected: a round of connecting has ended. Each path that it made was reported by Up.
	Connected struct{}
	// StandbyDone: an attempt to get a relayed path has ended.
	StandbyDone struct{}
	// Punched: an attempt to get direct paths has ended. Later: without what is most likely to succeed, for which another
	// peer's attempt has to end first. It does not count as one that failed. Apart: the two have no IP version in common; the next
	// follows minutes later, or when that may have changed (NetChanged, Nudged, NATs, Up).
	Punched struct{ Later, Apart bool }
	// NetChanged: addresses of this node, or where relays see it, have changed. All paths are probed, what failed before is
	// tried again.
	NetChanged struct{}
	// Nudged: the peer says that its addresses have changed.
	Nudged struct{}

	// Wake: the time of Next has come, or a quiet path carries data again. Silence is judged here, so every path must have a
	// sample. Kept: one of the two is the other's relay, so that the peer stays connected although it is not used. Thrifty: bytes
	// are paid for, so better paths are opened only for large transfers.
	Wake struct {
		Samples []Sample
		Kept    bool
		Thrifty bool
	}
)
